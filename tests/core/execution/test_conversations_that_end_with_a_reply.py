"""Conversations whose last message is a reply, such as that of the previous agent of a graph."""

from __future__ import annotations

from core.runs import plan, pool_of, subtask_of
from rl_conductor import Conductor, Planner, Policy, ScriptedModel, Tool
from rl_conductor.models import Capabilities
from rl_conductor.types import ImagePart, Message, Request, ToolCall

CAN = Capabilities(images=True, tools=True)
PICTURE = ImagePart(url="https://a")
ASKED, SAID = Message.user("Is it red?", PICTURE), Message.assistant("It is blue.")
TWO_STEPS = plan((0, "Look again.", []), (1, "Answer.", ["all"]))


def roles_and_texts(request: Request) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in request.messages]


async def test_workers_read_the_reply_before_their_prompt() -> None:
    a, b = ScriptedModel("seen", capabilities=CAN), ScriptedModel("No.", capabilities=CAN)

    trace = await Conductor(ScriptedModel(TWO_STEPS), pool_of(a=a, b=b)).run([ASKED, SAID])

    assert trace.text == "No."
    for model, subtask in ((a, "Look again."), (b, "Answer.")):
        (request,) = model.requests
        assert roles_and_texts(request)[:2] == [("user", "Is it red?"), ("assistant", "It is blue.")]
        assert [message.role for message in request.messages] == ["user", "assistant", "user"]
        assert PICTURE in request.messages[0].content
        assert subtask_of(request) == subtask


async def test_an_image_without_a_text_stays_in_front_of_the_reply() -> None:
    worker = ScriptedModel("No.", capabilities=CAN)
    asked = Message(role="user", content=(PICTURE,))

    await Conductor(ScriptedModel(plan((0, "Answer.", []))), pool_of(a=worker)).run([asked, SAID])

    (request,) = worker.requests
    assert [message.role for message in request.messages] == ["user", "assistant", "user"]
    assert request.messages[0].content == (PICTURE,)


async def test_a_step_that_sees_a_part_of_the_input_sees_the_reply() -> None:
    worker = ScriptedModel("No.", capabilities=CAN)
    rows = Planner(model=ScriptedModel(['[0, "Look.", [], ["image 2"]]']), form="rows")
    other = ImagePart(url="https://b")

    await Conductor(rows, pool_of(a=worker)).run([Message.user("Is it red?", PICTURE, other), SAID])

    (request,) = worker.requests
    asked, said, prompt = request.messages
    assert (other in asked.content, PICTURE in asked.content, said) == (True, False, SAID)
    assert prompt.text.startswith("[not shown to this step: image 1]")


async def test_after_a_tool_call_the_worker_sees_what_it_saw_before_it() -> None:
    call = ToolCall(id="1", name="look", arguments="{}")
    worker = ScriptedModel([Message.assistant(tool_calls=[call]), "No."], capabilities=CAN)
    conductor = Conductor(ScriptedModel([plan((0, "Answer.", []))]), pool_of(a=worker))
    tools = (Tool(name="look"),)

    completion = (await conductor.run(Request(messages=(ASKED, SAID), tools=tools))).completion
    assert completion is not None
    result = Message.tool("1", "red")
    await conductor.run(Request(messages=(ASKED, SAID, completion.message, result), tools=tools))

    first, second = worker.requests
    assert second.messages[:3] == first.messages
    assert [message.role for message in second.messages[3:]] == ["assistant", "tool"]


async def test_a_worker_that_answers_alone_gets_the_conversation_as_it_is() -> None:
    worker = ScriptedModel("No.", capabilities=CAN)

    await Conductor(ScriptedModel([]), pool_of(a=worker), policy=Policy(single="a")).run([ASKED, SAID])

    assert worker.requests[0].messages == (ASKED, SAID)
