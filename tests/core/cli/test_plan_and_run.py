"""`plan` prints a workflow in three forms, and `run` takes one of them back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from typer.testing import Result

from command_line import Service
from rl_conductor.workflow.workflow import Workflow

Cli = Callable[..., Result]
Pool = Callable[..., str]


def test_a_plan_is_drawn(cli: Cli, pool: Pool, service: Service) -> None:
    result = cli("plan", "--pool", pool(), "Hello?")

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "╭── 1 solver  Solve it.",
        "│╭─ 2 second  Solve it otherwise.",
        "╰┴▶ 3 solver  Compare the two.",
    ]
    assert "Two work, one compares." in result.stderr
    assert service.asked() == ["plan-three"]


def test_a_plan_as_json_is_a_workflow_that_runs(cli: Cli, pool: Pool, service: Service, tmp_path: Path) -> None:
    planned = cli("plan", "--json", "--pool", pool(), "Hello?").stdout
    (tmp_path / "workflow.json").write_text(planned)
    service.requests.clear()

    result = cli("run", "--pool", pool(), str(tmp_path / "workflow.json"), "Hello?")

    assert len(Workflow.model_validate_json(planned).steps) == 3
    assert (result.exit_code, result.stdout) == (0, "It is [bold]42[/bold].\n")
    assert sorted(service.asked()) == ["second", "solver", "solver"]


def test_a_plan_as_mermaid_is_a_flow_chart(cli: Cli, pool: Pool) -> None:
    result = cli("plan", "--mermaid", "--pool", pool(), "Hello?")

    assert result.stdout.startswith('flowchart TD\n    s0["1 · solver<br>Solve it."]\n')


def test_a_plan_can_be_printed_in_one_form_only(cli: Cli, pool: Pool) -> None:
    assert cli("plan", "--json", "--mermaid", "--pool", pool(), "Hello?").exit_code == 2


def test_a_planner_that_writes_no_plan_leaves_the_fall_back_and_an_error(cli: Cli, pool: Pool) -> None:
    result = cli("plan", "--pool", pool(planner="no-plan"), "Hello?")

    assert result.exit_code == 1
    assert result.stdout == "1 solver  Answer the overall task.\n"
    assert "error: the planner wrote no valid plan, so this is the fallback" in result.stderr
    assert result.stderr.count("no plan: neither the lists") == 1


def test_a_plan_that_had_to_be_repaired_says_so(cli: Cli, pool: Pool) -> None:
    result = cli("plan", "--pool", pool(planner="plan-lists"), "Hello?")

    assert result.stdout == "1 solver  Solve it.\n"
    assert "repaired: the plan was in the form 'lists'" in result.stderr


def test_a_plan_cannot_steer_the_terminal(cli: Cli, pool: Pool) -> None:
    for form in ((), ("--json",), ("--mermaid",)):
        result = cli("plan", *form, "--pool", pool(planner="plan-rude"), "Hello?")
        assert "Solve" in result.stdout
        assert "\x1b" not in result.stdout + result.stderr


def test_a_workflow_may_come_from_stdin_and_asks_itself(cli: Cli, pool: Pool) -> None:
    workflow = json.dumps({"steps": [{"subtask": "Say something about rain.", "worker": "echo"}]})

    result = cli("run", "--pool", pool("echo"), "-", text=workflow)

    assert result.exit_code == 0
    assert "Say something about rain." in result.stdout


def test_a_workflow_that_the_pool_cannot_run_is_a_mistake(cli: Cli, pool: Pool, service: Service) -> None:
    workflow = json.dumps({"steps": [{"subtask": "Think.", "worker": "nobody"}]})

    result = cli("run", "--pool", pool(), "-", text=workflow)

    assert (result.exit_code, service.requests) == (2, [])
    assert "there is no worker 'nobody'" in result.stderr


def test_what_is_no_workflow_is_a_mistake(cli: Cli, pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")

    for name, text in (("-", "{"), ("-", '{"steps": []}'), ("missing.json", ""), (str(tmp_path / "binary.json"), "")):
        result = cli("run", "--pool", pool(), name, text=text)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
