from __future__ import annotations

import json
import time
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from rl_conductor.cli.main import app
from rl_conductor.errors import ConfigError
from rl_conductor.types import Usage
from rl_conductor_server.spend_audit.log_formats import LoggedCall, parse_line
from rl_conductor_server.spend_audit.report import group_into_queries, report_spending

MESSAGES = [{"role": "user", "content": "What is 17 * 23?"}]
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 40}}
CHAT = {
    "model": "gpt-5-mini",
    "choices": [{"message": {"role": "assistant", "content": "391"}, "finish_reason": "stop"}],
    "usage": USAGE,
}
SHAPES: dict[str, dict[str, Any]] = {
    "pair": {"request": {"model": "gpt-5-mini", "messages": MESSAGES}, "response": CHAT},
    "completion": {"messages": MESSAGES, **CHAT},
    "flat": {"model": "gpt-5-mini", "messages": MESSAGES, "output": "391", **USAGE},
    "litellm": {
        "model": "gpt-5-mini",
        "messages": MESSAGES,
        "response": {"choices": CHAT["choices"]},
        **USAGE,
        "status": "success",
        "error_str": None,
    },
    "batch": {"custom_id": "1", "response": {"status_code": 200, "body": CHAT}, "error": None},
    "responses": {
        "request": {"model": "gpt-5-mini", "input": MESSAGES},
        "response": {
            "model": "gpt-5-mini",
            "status": "completed",
            "output": [{"type": "message", "content": [{"type": "output_text", "text": "391"}]}],
            "usage": {"input_tokens": 100, "output_tokens": 10, "input_tokens_details": {"cached_tokens": 40}},
        },
    },
    "messages": {
        "request": {"model": "gpt-5-mini", "messages": MESSAGES},
        "response": {
            "type": "message",
            "model": "gpt-5-mini",
            "content": [{"type": "text", "text": "391"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 100, "output_tokens": 10, "cache_read_input_tokens": 40},
        },
    },
}


def logged(*messages: dict[str, Any], reply: str = "391", **more: Any) -> LoggedCall:
    line = {"model": "gpt-5-mini", "messages": list(messages or MESSAGES), "output": reply, "cost": 0.5, **USAGE}
    return parse_line(json.dumps(line | more))


def calling(arguments: str, **more: Any) -> LoggedCall:
    tool_call = {"type": "function", "function": {"name": "search", "arguments": arguments}}
    return logged(choices=[{"message": {"tool_calls": [tool_call]}}], reply="", **more)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_parsed_to_the_same_call(shape: str) -> None:
    call = parse_line(json.dumps(SHAPES[shape]))
    assert (call.model, call.has_reply, call.error, call.is_truncated) == ("gpt-5-mini", True, None, False)
    usage = call.usage
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.calls) == (100, 40, 10, 1)
    assert usage.cost > 0
    assert not usage.unpriced_calls


def test_a_logged_cost_overrides_the_price_list() -> None:
    assert logged(response_cost=0.25).usage.cost == Decimal("0.25")


def test_a_model_without_a_known_price_is_counted_as_unpriced() -> None:
    assert logged(model="house/own", cost=None).usage.unpriced_calls == 1


@pytest.mark.parametrize(
    "failure",
    [
        {"error": {"message": "overloaded"}},
        {"status": "failure"},
        {"status_code": 503},
        {"response": {"status_code": 429}},
        {"error_str": "timed out"},
    ],
)
def test_a_failed_call_is_recognized_in_every_shape(failure: dict[str, Any]) -> None:
    assert logged(**failure).error


@pytest.mark.parametrize(
    "messages", [{}, {"messages": []}, {"messages": [{"role": "user", "content": "redacted-by-litellm"}]}]
)
def test_calls_whose_messages_were_not_logged_are_queries_of_their_own(messages: dict[str, Any]) -> None:
    lines = [{"model": "gpt-5-mini", "user": "ann", "id": f"call-{number}"} | messages for number in range(3)]
    queries = group_into_queries(parse_line(json.dumps(line)) for line in lines)
    assert [len(query.calls) for query in queries] == [1, 1, 1]
    assert not any(query.failures for query in queries)


def test_an_empty_reply_is_one_although_the_messages_were_not_logged() -> None:
    call = parse_line(json.dumps({"custom_id": "7", "response": {"body": {"model": "m", "choices": []}}}))
    assert not call.has_reply


def test_the_calls_of_an_agent_for_one_question_are_one_query() -> None:
    turns = [{"role": "assistant", "content": "Let me look."}, {"role": "tool", "content": "391"}]
    [query] = group_into_queries([calling("a"), logged(*MESSAGES, *turns)])
    assert [len(query.calls), query.usage.cost, query.failures, query.looks_simple] == [2, 1, frozenset(), False]


def test_repeating_an_answered_request_starts_a_new_query() -> None:
    assert [len(query.calls) for query in group_into_queries([logged(), logged()])] == [1, 1]


@pytest.mark.parametrize(
    ("calls", "failures"),
    [
        ([logged(error="overloaded"), logged()], {"error", "retried"}),
        ([logged(reply=" ")], {"empty"}),
        ([logged(finish_reason="length")], {"cut off"}),
        ([calling("a", seed=n, messages=[*MESSAGES, {"role": "tool", "content": str(n)}]) for n in range(3)], {"loop"}),
        ([calling(str(n), messages=[*MESSAGES, {"role": "tool", "content": str(n)}]) for n in range(3)], set()),
    ],
)
def test_failures_of_a_query_are_classified(calls: list[LoggedCall], failures: set[str]) -> None:
    [query] = group_into_queries(calls)
    assert query.failures == failures


@pytest.mark.timed
def test_a_log_without_replies_is_grouped_in_no_time() -> None:
    """In quadratic time, it would take half a minute."""
    calls = [LoggedCall(model="a", request="r", query="q", usage=Usage(calls=1), has_reply=False)] * 30_000
    began = time.process_time()
    (query,) = group_into_queries(calls)
    assert time.process_time() - began < 2
    assert query.failures == {"empty", "retried"}


def test_only_a_query_of_one_short_call_looks_simple() -> None:
    assert group_into_queries([logged()])[0].looks_simple
    for call in (logged(prompt_tokens=1_001), logged(completion_tokens=301), calling("a"), logged(reply="")):
        assert not group_into_queries([call])[0].looks_simple


def test_the_report_adds_up() -> None:
    other = {"role": "user", "content": "Another."}
    report = report_spending(
        group_into_queries(
            [
                logged(),
                logged(other, cost=2.5, model="gpt-5"),
                logged({"role": "user", "content": "A third."}, reply=""),
            ]
        )
    )
    assert (report.overall.queries, report.overall.calls, report.overall.usage.cost) == (3, 3, Decimal("3.5"))
    assert list(report.models) == ["gpt-5", "gpt-5-mini"]
    assert report.dollars.mean == pytest.approx(3.5 / 3)
    assert report.dollars.p50 == 0.5
    assert report.failures["empty"].usage.cost == Decimal("0.5")
    assert (report.failed.queries, report.simple.queries) == (1, 2)


FIELDS = [
    *("model", "messages", "request", "response", "body", "usage", "choices", "message", "content", "output", "error"),
    *("status", "cost", "prompt_tokens", "completion_tokens", "role", "type", "tool_calls", "function", "name"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_any_json_object_is_parsed_or_rejected(line: dict[str, Any]) -> None:
    with suppress(ConfigError):
        assert parse_line(json.dumps(line)).usage.calls == 1


def test_the_command_prints_the_report_and_the_skipped_lines(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(json.dumps(shape) for shape in SHAPES.values()) + "\nno json\n")
    result = CliRunner().invoke(app, ["audit-spend", str(log)], env={"COLUMNS": "150"})
    assert result.exit_code == 0
    assert "7 calls in 7 queries: 770 tokens" in result.stdout
    assert f"1 line skipped, the first at {log}:8: not JSON" in result.stderr
    as_json = CliRunner().invoke(app, ["audit-spend", str(log), "--json"])
    assert json.loads(as_json.stdout)["simple"]["queries"] == 7


def test_json_output_escapes_control_characters_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    strange = SHAPES["flat"] | {"model": "gpt\x9b2J"}
    log.write_text(json.dumps(strange))
    result = CliRunner().invoke(app, ["audit-spend", str(log), "--json"]).stdout
    assert "\x9b" not in result
    assert "gpt\x9b2J" in json.loads(result)["models"]


def test_a_file_without_calls_is_an_error(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("{}\n")
    result = CliRunner().invoke(app, ["audit-spend", str(log)])
    assert result.exit_code == 2
    assert "no field 'model'" in result.stderr
