"""`trace`: a run told from its file, and run again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from command_line import Service
from rl_conductor.trace.trace import Trace

Cli = Callable[..., Result]
Pool = Callable[..., str]


@pytest.fixture
def kept(cli: Cli, pool: Pool, tmp_path: Path) -> Path:
    """The trace of a run of three steps."""
    path = tmp_path / "run.json"
    assert cli("ask", "--save", str(path), "--pool", pool(), "What is 6 * 7?").exit_code == 0
    return path


def test_show_tells_who_did_what_and_what_it_cost(cli: Cli, kept: Path) -> None:
    told = cli("trace", "show", str(kept)).stdout

    assert "question  What is 6 * 7?" in told
    assert "planned by openai:plan-three" in told
    assert "╰┴▶ 3 ✓ solver" in told
    assert "solver        2    200       0      20  $0.00056" in told
    assert "answer, by solver-2026\nIt is [bold]42[/bold].\n" in told
    assert told.splitlines()[-1].startswith("3 steps · 2 workers · 440 tokens · $0.0011")


def test_show_keeps_what_workers_were_shown_to_itself_until_asked(cli: Cli, kept: Path) -> None:
    brief = cli("trace", "show", str(kept)).stdout
    full = cli("trace", "show", str(kept), "--step", "0", "-s", "3").stdout

    assert "It is 43." not in brief
    assert "── planner, call 1 to openai:plan-three: ok" in full
    assert "── step 3, solver, call 1 to openai:solver: ok" in full
    assert "It is 43." in full


def test_show_refuses_a_step_that_never_was(cli: Cli, kept: Path) -> None:
    result = cli("trace", "show", str(kept), "--step", "4")

    assert (result.exit_code, result.stdout) == (2, "")
    assert "the steps are 1 to 3, and 0 is the planner" in result.stderr


def test_a_failed_run_is_told_too(cli: Cli, pool: Pool, tmp_path: Path) -> None:
    path = tmp_path / "failed.json"
    cli("ask", "--save", str(path), "--pool", pool("rate-limit", planner="plan-one"), "--seconds", "5", "Hello?")

    told = cli("trace", "show", str(path), "--step", "1").stdout

    assert "1 ✗ rate-limit" in told
    assert "! step 1: rate-limit: " in told
    assert "no answer: step 1: rate-limit" in told
    assert "call 1 to openai:rate-limit: error" in told


def test_a_reply_without_the_required_format_is_shown_with_the_error(cli: Cli, pool: Pool, tmp_path: Path) -> None:
    path, schema = tmp_path / "failed.json", tmp_path / "schema.json"
    schema.write_text('{"title": "Sum", "type": "object", "properties": {"sum": {"type": "integer"}}}')
    cli("ask", "--save", str(path), "--pool", pool(planner="plan-one"), "--schema", str(schema), "Hi?")

    told = cli("trace", "show", str(path), "--step", "1").stdout

    assert "It is [bold]42[/bold]." in told
    assert "the reply is not JSON" in told


def test_a_trace_that_keeps_no_content_says_so(cli: Cli, kept: Path) -> None:
    trace = Trace.model_validate_json(kept.read_text())
    plan = trace.rounds[0].plan
    call = plan.calls[0].model_copy(update={"request": None})
    bare = trace.rounds[0].model_copy(update={"plan": plan.model_copy(update={"calls": (call,)})})
    kept.write_text(trace.model_copy(update={"rounds": (bare,)}).model_dump_json())

    assert "the request was not recorded" in cli("trace", "show", str(kept), "-s", "0").stdout


def test_what_was_said_cannot_steer_the_terminal(cli: Cli, pool: Pool, tmp_path: Path) -> None:
    path = tmp_path / "rude.json"
    cli("ask", "--save", str(path), "--pool", pool("rude", planner="plan-rude"), "Hello?")

    told = cli("trace", "show", str(path), "-s", "0", "-s", "1").stdout

    assert told.count("one two threefour") == 2
    assert not set(told) & set("\x1b\x9b\x07\u202e")


def test_replay_asks_nobody_and_finds_the_same(cli: Cli, kept: Path, service: Service) -> None:
    service.requests.clear()

    result = cli("trace", "replay", str(kept))

    assert (result.exit_code, service.requests) == (0, [])
    assert result.stdout == "✓ the same run: all 4 calls were answered from the trace\n"


def test_replay_names_what_was_changed(cli: Cli, kept: Path) -> None:
    changed = kept.read_text().replace("Solve it otherwise.", "Solve it badly.", 1)

    result = cli("trace", "replay", "-", text=changed)

    assert result.exit_code == 1
    assert "≠ round 1, planner: " in result.stdout
    assert result.stderr.startswith("error: the replay differs in ")


@pytest.mark.parametrize("action", ["show", "replay"])
@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1]", "not json", '{"a":' * 100_000 + "1" + "}" * 100_000],
    ids=["empty", "no fields", "a list", "no JSON", "too deep"],
)
def test_what_is_no_trace_is_a_mistake(cli: Cli, action: str, text: str) -> None:
    result = cli("trace", action, "-", text=text)

    assert result.exit_code == 2
    assert result.stderr.startswith("error: '-' is not a trace")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("action", ["show", "replay"])
@pytest.mark.parametrize("cost", ["1e-999999999", "1e999999999"])
def test_an_amount_that_would_fill_the_memory_is_no_trace(cli: Cli, kept: Path, action: str, cost: str) -> None:
    text = re.sub(r'"cost": ?"[^"]*"', f'"cost":"{cost}"', kept.read_text(), count=1)

    result = cli("trace", action, "-", text=text)

    assert result.exit_code == 2
    assert "write an amount of US dollars with at most 60 digits" in result.stderr


def test_a_trace_with_results_that_form_no_workflow_is_shown_without_them(cli: Cli, kept: Path) -> None:
    trace = json.loads(kept.read_text())
    trace["rounds"][0]["results"][0]["step"]["access"] = [1]

    result = cli("trace", "show", "-", text=json.dumps(trace))

    assert (result.exit_code, trace["id"] in result.stdout) == (0, True)


def test_a_trace_of_a_later_version_with_unknown_features_of_models_is_replayed(cli: Cli, kept: Path) -> None:
    trace = json.loads(kept.read_text())
    for model in (trace["setup"]["planner"], *trace["setup"]["workers"]):
        model["can"] += ["lengths", "video"]

    assert cli("trace", "replay", "-", text=json.dumps(trace)).exit_code == 0


def test_a_trace_without_a_question_is_not_replayed(cli: Cli, kept: Path) -> None:
    trace = json.loads(kept.read_text())
    trace["request"]["messages"] = []

    result = cli("trace", "replay", "-", text=json.dumps(trace))

    assert (result.exit_code, result.stderr) == (2, "error: the question is empty; write a question\n")
