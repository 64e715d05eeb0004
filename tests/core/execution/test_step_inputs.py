"""Steps that see only some of the user's earlier turns and attachments."""

from __future__ import annotations

import json
from typing import Any

import pytest

from core.runs import pool_of
from rl_conductor import Conductor, Planner, Policy, ScriptedModel, Step, Tool, Trace, Workflow
from rl_conductor.errors import WorkflowValidationError
from rl_conductor.models import Capabilities
from rl_conductor.prompting.plan_rules import RULE_INPUTS
from rl_conductor.prompting.request_inputs import LONG_CHARS
from rl_conductor.trace.events import Event
from rl_conductor.trace.summary import Summary, progress
from rl_conductor.types import FilePart, ImagePart, Message, Request, ToolCall

IMAGE, OTHER = ImagePart(url="https://a"), ImagePart(url="https://b")
ASKED = Request(messages=(Message.user("What is different?", IMAGE, OTHER),))
LONG = "a long story " * LONG_CHARS
CHAT = Request(
    messages=(
        Message.user(LONG),
        Message.assistant("I see."),
        Message.user("Short."),
        Message.assistant("Yes."),
        Message.user("What is different?", IMAGE),
    )
)
CAN = Capabilities(images=True, tools=True, json_schema=True)


def row(subtask: str, worker: int, access: list[str], inputs: list[str] | None) -> str:
    return json.dumps([worker, subtask, access] if inputs is None else [worker, subtask, access, inputs])


def worker(reply: Any = "seen") -> ScriptedModel:
    return ScriptedModel(reply, capabilities=CAN)


def planner_of(*rows: str, **settings: Any) -> Planner:
    return Planner(model=ScriptedModel(["\n".join(rows)]), form="rows", **settings)


def images(request: Request) -> list[str | None]:
    return [part.url for message in request.messages for part in message.content if isinstance(part, ImagePart)]


async def test_each_step_sees_the_attachments_that_the_plan_gives_it() -> None:
    a, b, c = worker(), worker(), worker("Done.")
    planner = planner_of(
        row("Describe.", 0, [], ["image 1"]), row("Describe.", 1, [], ["image 2"]), row("Compare.", 2, ["all"], [])
    )
    events: list[Event] = []

    trace = await Conductor(planner, pool_of(a=a, b=b, c=c)).run(ASKED, on_event=events.append)

    assert (trace.text, trace.rounds[0].plan.repairs) == ("Done.", ())
    assert [images(model.requests[0]) for model in (a, b, c)] == [["https://a"], ["https://b"], []]
    assert a.requests[0].messages[-1].text.startswith("[not shown to this step: image 2]\n\nThe overall task:")
    assert [step.inputs for step in Summary.of(trace).rounds[0].steps] == [("image 1",), ("image 2",), ()]
    (planned,) = (report for event in events if (report := progress(event)) and report["type"] == "workflow_planned")
    assert [step["inputs"] for step in planned["steps"]] == [["image 1"], ["image 2"], []]
    assert Trace.model_validate_json(trace.model_dump_json()) == trace


async def test_the_planner_is_told_the_names_where_there_is_a_choice() -> None:
    planner = planner_of(row("Compare.", 0, [], ["all"]))
    await Conductor(planner, pool_of(a=worker("Done."))).run(ASKED)
    assert isinstance(planner.model, ScriptedModel)
    *_, question = planner.model.requests[0].messages
    assert "The question has several parts: image 1, image 2." in question.text
    assert "[image 1 attached: image/png]\n[image 2 attached: image/png]" in question.text

    alone = planner_of(row("Compare.", 0, [], None))
    await Conductor(alone, pool_of(a=worker("Done."))).run(Request(messages=(Message.user("What?", IMAGE),)))
    assert isinstance(alone.model, ScriptedModel)
    prompt = "".join(message.text for message in alone.model.requests[0].messages)
    assert "inputs" not in prompt
    assert RULE_INPUTS.partition("{")[0] not in prompt
    assert "[image attached: image/png]" in prompt


async def test_a_long_turn_can_be_left_out_and_short_ones_stay() -> None:
    a, b = worker(), worker("Done.")
    planner = planner_of(row("Describe.", 0, [], ["image 1"]), row("Sum up.", 1, ["all"], ["turn 1"]))
    trace = await Conductor(planner, pool_of(a=a, b=b)).run(CHAT)

    assert isinstance(planner.model, ScriptedModel)
    assert "[user, turn 1]\na long story" in planner.model.requests[0].messages[-1].text
    assert trace.rounds[0].plan.workflow is not None
    assert trace.rounds[0].plan.workflow.steps[0].inputs == frozenset({"image 1", "turn 2"})
    assert [message.text for message in a.requests[0].messages[:-1]] == ["Short.", "Yes."]
    assert (images(a.requests[0]), images(b.requests[0])) == (["https://a"], [])
    assert [len(message.text) for message in b.requests[0].messages[:-1]] == [len(LONG), 6, 6, 4]


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ('model_id = [0]\nsubtasks = ["Compare."]\naccess_list = [[]]', {"form": "lists"}),
        (row("Compare.", 0, [], None), {"form": "rows", "roster": "anonymous"}),
    ],
)
async def test_plans_of_trained_planners_give_every_step_everything(text: str, settings: dict[str, Any]) -> None:
    a = worker("Done.")
    planner = Planner(model=ScriptedModel([text]), **settings)
    trace = await Conductor(planner, pool_of(a=a)).run(ASKED)
    assert isinstance(planner.model, ScriptedModel)
    assert "inputs" not in "".join(message.text for message in planner.model.requests[0].messages)
    assert (trace.rounds[0].plan.repairs, images(a.requests[0])) == ((), ["https://a", "https://b"])


async def test_a_callers_workflow_may_name_any_part_and_unknown_names_are_errors() -> None:
    a = worker("Done.")
    conductor = Conductor(ScriptedModel("x"), pool_of(a=a))
    only = Workflow(steps=(Step(subtask="Look.", worker="a", inputs=frozenset({"turn 2"})),))
    await conductor.run(CHAT, workflow=only)
    assert [message.text for message in a.requests[0].messages[:-1]] == ["Short.", "Yes."]
    assert images(a.requests[0]) == []

    wrong = Workflow(steps=(Step(subtask="Look.", worker="a", inputs=frozenset({"image 2"})),))
    with pytest.raises(WorkflowValidationError, match="no input 'image 2'; there are image 1, turn 1, turn 2"):
        await conductor.run(CHAT, workflow=wrong)
    with pytest.raises(WorkflowValidationError, match="there are no earlier turns or attachments"):
        await conductor.run("What?", workflow=wrong)


async def test_a_worker_that_takes_over_sees_no_more() -> None:
    b = worker("Done.")
    broken = ScriptedModel(lambda _: ValueError("broken"), capabilities=CAN)
    one = Workflow(steps=(Step(subtask="Look.", worker="a", inputs=frozenset({"image 1"})),))
    trace = await Conductor(ScriptedModel("x"), pool_of(a=broken, b=b)).run(ASKED, workflow=one)
    assert (trace.rounds[0].results[0].step.worker, images(b.requests[0])) == ("b", ["https://a"])


async def test_a_worker_that_continues_after_tool_calls_sees_no_more() -> None:
    look = Tool(name="look")
    call = Message.assistant(tool_calls=[ToolCall(id="1", name="look", arguments="{}")])
    a = worker([call, call, "Done."])
    conductor = Conductor(ScriptedModel("x"), pool_of(a=a))
    one = Workflow(steps=(Step(subtask="Look.", worker="a", inputs=frozenset({"image 2"})),))
    request = ASKED.model_copy(update={"tools": (look,)})
    reply = (await conductor.run(request, workflow=one)).completion
    for _ in range(2):
        assert reply is not None
        messages = (*request.messages, reply.message, Message.tool("1", "a cat"))
        request = request.model_copy(update={"messages": messages})
        reply = await conductor.complete(request)
    assert reply is not None
    assert reply.text == "Done."
    assert [images(request) for request in a.requests] == [["https://b"]] * 3


async def test_an_attachment_counts_as_read_only_by_a_step_that_sees_it() -> None:
    blind = ScriptedModel("Done.", capabilities=Capabilities())
    sees = worker("a cat")
    request = Request(messages=(Message.user("What?", IMAGE, FilePart(data="QQ==", media_type="text/plain")),))
    reader = ScriptedModel("text", capabilities=Capabilities(files=True))
    unread = row("Look.", 1, [], ["file 1"])
    read = "\n".join(
        [row("Look.", 1, [], ["image 1"]), row("Read.", 2, [], ["file 1"]), row("Answer.", 0, ["all"], [])]
    )
    planner = Planner(model=ScriptedModel([unread, read]), form="rows")
    trace = await Conductor(planner, pool_of(a=blind, b=sees, c=reader)).run(request)
    assert trace.text == "Done."
    assert "the images of the question must be read by 'b'" in trace.rounds[0].plan.errors[0]


async def test_flow_rules_hold_for_steps_with_inputs() -> None:
    forbid = Policy.model_validate({"forbid": [{"reader": "b", "source": "a"}]})
    steps = (
        Step(subtask="Look.", worker="a", inputs=frozenset()),
        Step(subtask="Answer.", worker="b", access=frozenset({0}), inputs=frozenset()),
    )
    with pytest.raises(WorkflowValidationError, match="nothing from 'a' may reach 'b'"):
        await Conductor(ScriptedModel("x"), pool_of(a=worker(), b=worker()), policy=forbid).run(
            ASKED, workflow=Workflow(steps=steps)
        )


def test_drawings_and_json_say_what_a_step_sees_unless_it_sees_everything() -> None:
    steps = (
        Step(subtask="Look.", worker="a", inputs=frozenset({"image 2", "image 1"})),
        Step(subtask="Think.", worker="a", inputs=frozenset()),
        Step(subtask="Answer.", worker="a", access=frozenset({0})),
    )
    workflow = Workflow(steps=steps)
    assert workflow.ascii().splitlines() == [
        "   1 a  Look. · sees image 1, image 2",
        "   2 a  Think. · sees no inputs",
        "─▶ 3 a  Answer. ⟵ 1",
    ]
    assert 's0["1 · a<br>Look.<br>sees image 1, image 2"]' in workflow.mermaid()
    written = json.loads(workflow.model_dump_json())["steps"]
    assert [step.get("inputs") for step in written] == [["image 1", "image 2"], [], None]
    assert "inputs" not in written[2]
    assert Workflow.model_validate_json(workflow.model_dump_json()) == workflow
