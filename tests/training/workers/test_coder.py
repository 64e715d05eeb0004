from __future__ import annotations

import pytest

from rl_conductor import (
    Conductor,
    Limits,
    Message,
    Model,
    Request,
    ScriptedModel,
    Step,
    WorkerPool,
    Workflow,
    model,
)
from rl_conductor.errors import ModelError
from rl_conductor_training.sandbox.sandbox import ResourceLimits
from rl_conductor_training.workers.coder import CoderModel

TASK = Request(messages=(Message.system("Be brief."), Message.user("What is 6 times 7?")))


async def test_the_reply_is_the_output_of_the_program() -> None:
    base = ScriptedModel(["Here:\n```python\nprint(6 * 7)\n```"])
    reply = await CoderModel(base).complete(TASK)
    assert (reply.text, reply.usage.calls, reply.model) == ("42", 1, "scripted:scripted")
    assert base.requests[0].messages[0].text.endswith("Be brief.")
    assert base.requests[0].messages[-1] == TASK.messages[1]


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("print(1 / 0)", "ZeroDivisionError: division by zero"),
        ("x = 42", "it printed nothing"),
        ("import socket; socket.socket()", "PermissionError"),
        ("def f(:", "SyntaxError"),
        ("```python\nprint(8 * 903 % 77)\n```", "it is the program of an example"),
    ],
)
async def test_a_failing_program_is_rewritten_with_its_error(program: str, problem: str) -> None:
    base = ScriptedModel([program, "print(42)"])
    reply = await CoderModel(base, limits=ResourceLimits(seconds=5)).complete(TASK)
    assert (reply.text, reply.usage.calls) == ("42", 2)
    assert base.requests[1].messages[-2].text == program
    assert problem in base.requests[1].messages[-1].text


async def test_a_program_that_does_not_end_is_rewritten() -> None:
    base = ScriptedModel(["import time; time.sleep(60)"] * 2)
    reply = await CoderModel(base, limits=ResourceLimits(seconds=1)).complete(TASK)
    assert reply.usage.calls == 2
    assert "still running after" in base.requests[1].messages[-1].text


async def test_when_no_program_works_the_reply_says_so() -> None:
    base = ScriptedModel(["1 / 0", "2 / 0"])
    reply = await CoderModel(base).complete(TASK)
    assert reply.text == "No program worked; the last one: ZeroDivisionError: division by zero"
    base.assert_complete()


async def test_an_error_of_the_base_model_is_raised() -> None:
    with pytest.raises(ModelError, match="down"):
        await CoderModel(ScriptedModel([ModelError("down", model="m")])).complete(TASK)


async def test_the_reply_is_streamed_in_one_piece() -> None:
    deltas = [delta async for delta in CoderModel(ScriptedModel("print(42)")).stream(TASK)]
    assert [delta.text for delta in deltas] == ["42", ""]
    assert deltas[-1].completion is not None


async def test_each_program_counts_towards_the_limits_of_the_run() -> None:
    base = ScriptedModel(["1 / 0", "print(42)"])
    conductor = Conductor(ScriptedModel("unused"), WorkerPool({"coder": CoderModel(base)}))
    workflow = Workflow(steps=(Step(subtask="Calculate.", worker="coder"),))
    with pytest.raises(Exception, match=r"limits\.calls=1"):
        await conductor.run("6 times 7?", workflow=workflow, limits=Limits(calls=1))
    assert len(base.requests) == 1
    trace = await Conductor(
        ScriptedModel("unused"), WorkerPool({"coder": CoderModel(ScriptedModel(["1 / 0", "print(42)"]))})
    ).run("6 times 7?", workflow=workflow, limits=Limits(calls=2))
    assert (trace.text, trace.usage.calls) == ("42", 2)


def test_a_model_name_is_accepted() -> None:
    coder = model("coder:embedded:smollm2-135m")
    assert isinstance(coder, Model)
    assert coder.name == "coder:embedded:smollm2-135m"
    assert coder.capabilities.delegates
