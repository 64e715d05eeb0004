"""Failures that do not end a run are logged as well as recorded in the trace."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import Any

import pytest

from core.runs import down, plan, worker
from rl_conductor.conductor import Conductor
from rl_conductor.errors import AuthenticationError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.types import Price, Request
from rl_conductor.workflow import Limits

KEY = "sk-0123456789-very-secret"
TWO = plan((0, "Draft.", []), (1, "Answer.", ["all"]))


@pytest.fixture(autouse=True)
def _at_the_default_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)


class Keeper(ScriptedModel):
    """A user's own model, which quotes its key in what it raises."""

    def __init__(self, **options: Any) -> None:
        super().__init__(self._fail, **options)
        self.api_key = KEY

    def _fail(self, _: Request) -> Any:
        raise RuntimeError(f"Event loop is closed\nforged: line\x1b[2J with {self.api_key}")


def conductor(planner: Any, **workers: Any) -> Conductor:
    planner = planner if isinstance(planner, ScriptedModel) else ScriptedModel(planner, name="p")
    described = {name: {"model": worker(name, model).model, "description": name} for name, model in workers.items()}
    return Conductor(planner, described, retries=0)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert {(record.name, record.levelno) for record in caplog.records} <= {("rl_conductor.run", logging.WARNING)}
    return [record.getMessage() for record in caplog.records]


async def test_a_run_in_which_all_goes_well_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    await conductor(TWO, a="x", b="y").run("hi")
    assert logged(caplog) == []


async def test_an_unexpected_exception_is_logged_on_one_line_without_keys(caplog: pytest.LogCaptureFixture) -> None:
    trace = await conductor(TWO, a=Keeper(name="own"), b="y").run("hi")
    first, *others = logged(caplog)
    assert "(a, attempt 1): scripted:own raised RuntimeError: Event loop is closed forged: line" in first
    assert (others, trace.text) == ([], "y")
    assert KEY not in caplog.text
    assert first.isprintable()


async def test_what_a_vendor_says_is_recorded_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    def refused(_: Request) -> Exception:
        return AuthenticationError("no such key", model="a", status=401)

    await conductor(TWO, a=ScriptedModel(refused, name="a"), b="y").run("hi")
    assert logged(caplog) == []


async def test_a_worker_that_is_not_called_for_want_of_a_price_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    free = Price(input=0, output=0)
    unpriced = ScriptedModel("x", name="a", price=None)
    trace = await conductor(ScriptedModel(TWO, name="p", price=free), a=unpriced, b=ScriptedModel("y", price=free)).run(
        "hi", limits=Limits(usd=1)
    )
    assert [result.step.worker for result in trace.results] == ["b", "b"]
    (line,) = logged(caplog)
    assert "(a, attempt 1): the price of scripted:a is unknown, so limits.usd can't be enforced" in line


@pytest.mark.parametrize(("planner", "why"), [("no plan", "no plan: neither"), (down, "out of order")])
async def test_a_fallback_to_a_single_worker_is_logged(
    caplog: pytest.LogCaptureFixture, planner: Any, why: str
) -> None:
    trace = await conductor(planner, a="x", b="y").run("hi")
    assert trace.rounds[0].plan.source == "fallback"
    assert f"{trace.id} has no plan for round 1, so a answers alone: {why}" in logged(caplog)[-1]


async def test_a_draft_that_answers_because_the_last_step_failed_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def refused(_: Request) -> Exception:
        return AuthenticationError("no such key", model="b", status=401)

    trace = await conductor(TWO, a=["x", AuthenticationError("no", model="a")], b=refused).run("hi")
    assert trace.answer is not None
    assert trace.answer.source == "evidence"
    (line,) = logged(caplog)
    assert line.startswith(f"{trace.id}: the last step failed, so the reply of step 1 answers: ")
    assert "no such key" in line


@pytest.mark.parametrize("logging_is_set_up", [False, True])
def test_a_command_prints_failures_itself_and_logs_none(logging_is_set_up: bool) -> None:
    lines = ["import sys, logging", "from rl_conductor.cli.main import app", "sys.argv = ['rl-conductor', 'doctor']"]
    lines += ["logging.basicConfig()"] if logging_is_set_up else []
    lines += ["app(standalone_mode=False)", "logging.getLogger('rl_conductor.run').warning('seen')"]
    command = [sys.executable, "-c", "\n".join(lines)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, "HOME": "/nowhere"})
    assert ("seen" in ended.stderr) == logging_is_set_up
