from __future__ import annotations

import json
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
from rl_conductor_server.experiments.log_formats import Logged, read
from rl_conductor_server.experiments.spend_audit import queries, spending

ASKED = [{"role": "user", "content": "What is 17 * 23?"}]
USED = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 40}}
CHAT = {
    "model": "gpt-5-mini",
    "choices": [{"message": {"role": "assistant", "content": "391"}, "finish_reason": "stop"}],
    "usage": USED,
}
SHAPES: dict[str, dict[str, Any]] = {
    "pair": {"request": {"model": "gpt-5-mini", "messages": ASKED}, "response": CHAT},
    "completion": {"messages": ASKED, **CHAT},
    "flat": {"model": "gpt-5-mini", "messages": ASKED, "output": "391", **USED},
    "litellm": {
        "model": "gpt-5-mini",
        "messages": ASKED,
        "response": {"choices": CHAT["choices"]},
        **USED,
        "status": "success",
        "error_str": None,
    },
    "batch": {"custom_id": "1", "response": {"status_code": 200, "body": CHAT}, "error": None},
    "responses": {
        "request": {"model": "gpt-5-mini", "input": ASKED},
        "response": {
            "model": "gpt-5-mini",
            "status": "completed",
            "output": [{"type": "message", "content": [{"type": "output_text", "text": "391"}]}],
            "usage": {"input_tokens": 100, "output_tokens": 10, "input_tokens_details": {"cached_tokens": 40}},
        },
    },
    "messages": {
        "request": {"model": "gpt-5-mini", "messages": ASKED},
        "response": {
            "type": "message",
            "model": "gpt-5-mini",
            "content": [{"type": "text", "text": "391"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 100, "output_tokens": 10, "cache_read_input_tokens": 40},
        },
    },
}


def logged(*messages: dict[str, Any], reply: str = "391", **more: Any) -> Logged:
    line = {"model": "gpt-5-mini", "messages": list(messages or ASKED), "output": reply, "cost": 0.5, **USED}
    return read(json.dumps(line | more))


def calling(arguments: str, **more: Any) -> Logged:
    called = {"type": "function", "function": {"name": "search", "arguments": arguments}}
    return logged(choices=[{"message": {"tool_calls": [called]}}], reply="", **more)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_known_shape_tells_the_same_call(shape: str) -> None:
    found = read(json.dumps(SHAPES[shape]))
    assert (found.model, found.said, found.error, found.cut_off) == ("gpt-5-mini", True, None, False)
    used = found.usage
    assert (used.input_tokens, used.cached_tokens, used.output_tokens, used.calls) == (100, 40, 10, 1)
    assert used.cost > 0
    assert not used.unpriced_calls


def test_a_cost_that_is_logged_goes_before_the_price_that_is_known() -> None:
    assert logged(response_cost=0.25).usage.cost == Decimal("0.25")


def test_a_model_without_a_known_price_is_counted_as_such() -> None:
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
def test_a_call_that_failed_is_known_in_every_shape(failure: dict[str, Any]) -> None:
    assert logged(**failure).error


def test_an_agents_calls_for_one_question_are_one_query() -> None:
    work = [{"role": "assistant", "content": "Let me look."}, {"role": "tool", "content": "391"}]
    [query] = queries([calling("a"), logged(*ASKED, *work)])
    assert [len(query.calls), query.usage.cost, query.failures, query.looks_simple] == [2, 1, frozenset(), False]


def test_asking_again_what_was_answered_is_another_query() -> None:
    assert [len(query.calls) for query in queries([logged(), logged()])] == [1, 1]


@pytest.mark.parametrize(
    ("calls", "states"),
    [
        ([logged(error="overloaded"), logged()], {"error", "retried"}),
        ([logged(reply=" ")], {"empty"}),
        ([logged(finish_reason="length")], {"cut off"}),
        ([calling("a", seed=n, messages=[*ASKED, {"role": "tool", "content": str(n)}]) for n in range(3)], {"loop"}),
        ([calling(str(n), messages=[*ASKED, {"role": "tool", "content": str(n)}]) for n in range(3)], set()),
    ],
)
def test_how_a_query_failed_is_told(calls: list[Logged], states: set[str]) -> None:
    [query] = queries(calls)
    assert query.failures == states


def test_a_query_looks_simple_only_when_one_short_call_did_it() -> None:
    assert queries([logged()])[0].looks_simple
    for call in (logged(prompt_tokens=1_001), logged(completion_tokens=301), calling("a"), logged(reply="")):
        assert not queries([call])[0].looks_simple


def test_the_report_adds_up() -> None:
    other = {"role": "user", "content": "Another."}
    report = spending(
        queries(
            [
                logged(),
                logged(other, cost=2.5, model="gpt-5"),
                logged({"role": "user", "content": "A third."}, reply=""),
            ]
        )
    )
    assert (report.whole.queries, report.whole.calls, report.whole.usage.cost) == (3, 3, Decimal("3.5"))
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
def test_a_line_of_any_form_is_a_call_or_refused(line: dict[str, Any]) -> None:
    with suppress(ConfigError):
        assert read(json.dumps(line)).usage.calls == 1


def test_the_command_tells_the_report_and_what_it_passed_over(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(json.dumps(shape) for shape in SHAPES.values()) + "\nno json\n")
    told = CliRunner().invoke(app, ["audit-spend", str(log)], env={"COLUMNS": "150"})
    assert told.exit_code == 0
    assert "7 calls at 7 queries: 770 tokens" in told.stdout
    assert f"1 line passed over, the first at {log}:8: not JSON" in told.stderr
    machine = CliRunner().invoke(app, ["audit-spend", str(log), "--json"])
    assert json.loads(machine.stdout)["simple"]["queries"] == 7


def test_json_for_machines_moves_no_cursor_by_what_a_log_says(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    strange = SHAPES["flat"] | {"model": "gpt\x9b2J"}
    log.write_text(json.dumps(strange))
    told = CliRunner().invoke(app, ["audit-spend", str(log), "--json"]).stdout
    assert "\x9b" not in told
    assert "gpt\x9b2J" in json.loads(told)["models"]


def test_a_file_without_calls_is_a_mistake(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("{}\n")
    told = CliRunner().invoke(app, ["audit-spend", str(log)])
    assert told.exit_code == 2
    assert "no field 'model'" in told.stderr
