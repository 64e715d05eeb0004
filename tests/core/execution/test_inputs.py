"""Questions with attachments that some workers can't read, and questions that are long."""

from __future__ import annotations

from typing import Any

import pytest

from core.runs import ACCEPT, down, plan, pool_of, worker
from rl_conductor.conductor import Conductor
from rl_conductor.errors import PolicyError, RunError
from rl_conductor.models.scripted import ALL, ScriptedModel
from rl_conductor.prompting.worker_prompt import MAX_REPLY_CHARS, subtask_in
from rl_conductor.replay import differences, replay
from rl_conductor.trace.trace import Trace
from rl_conductor.types import FilePart, ImagePart, Message, Request
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Flow, Policy

IMAGE, FILE = ImagePart(url="https://x"), FilePart(data="QQ==")
PARTS = {"images": IMAGE, "files": FILE}
NOTES = {"images": "[image attached; not shown to this model]", "files": "[file attached; not shown to this model]"}
SEE_THEN_REASON = plan((1, "Describe it.", []), (0, "Answer.", ["all"]))


def lacking(*kinds: str, reply: Any = "A", context: int | None = None, name: str = "scripted") -> ScriptedModel:
    can = ALL.model_copy(update={**dict.fromkeys(kinds, False), "context": context})
    return ScriptedModel(reply, name=name, capabilities=can)


def seeing(*parts: Any) -> Request:
    return Request(messages=(Message.user("What is it?", *parts),))


async def run(planner: Any, pool: Any, request: Any, **options: Any) -> Trace:
    planner = planner if isinstance(planner, ScriptedModel) else ScriptedModel(planner)
    return await Conductor(planner, pool, **options).run(request)


# --------------------------------------------------------------------------------------------- attachments


@pytest.mark.parametrize("kind", PARTS)
async def test_a_worker_that_reads_the_attachment_prepares_the_answer_of_one_that_does_not(kind: str) -> None:
    reasoner, reader = lacking(kind, name="a"), ScriptedModel("a cat", name="b")
    planner = ScriptedModel([SEE_THEN_REASON])

    trace = await run(planner, pool_of(a=reasoner, b=reader), seeing(PARTS[kind]))

    assert (trace.text, trace.rounds[0].plan.source) == ("A", "planner")
    assert PARTS[kind] in reader.requests[0].messages[0].content
    (message,) = reasoner.requests[0].messages
    assert message.text.startswith(f"{NOTES[kind]}\n\n")
    assert {part.type for part in message.content} == {"text"}
    assert (subtask_in(message.text), "a cat" in message.text) == ("Answer.", True)
    prompt = planner.requests[0].messages[-1].text
    assert f"The question has {kind} that only model 1 can read" in prompt
    assert differences(trace, await replay(trace)) == ()


async def test_a_plan_in_which_no_one_reads_the_image_is_planned_again() -> None:
    blind_plan, unused = plan((0, "x", [])), plan((1, "see", []), (0, "answer", []))
    planner = ScriptedModel([blind_plan, unused, SEE_THEN_REASON])

    trace = await run(planner, pool_of(a=lacking("images"), b="a cat"), seeing(IMAGE))

    assert trace.text == "A"
    assert [error for error in trace.rounds[0].plan.errors if "images of the question must be read by 'b'" in error]
    assert len(trace.rounds[0].plan.errors) == 2


async def test_without_a_valid_plan_a_worker_that_sees_the_image_answers() -> None:
    pool = pool_of(a=worker("a", lacking("images"), accuracy=0.9), b=worker("b", "B", accuracy=0.1))
    trace = await run("no plan", pool, seeing(IMAGE))

    assert (trace.text, trace.rounds[0].plan.source) == ("B", "fallback")


async def test_a_worker_that_sees_the_image_is_replaced_only_by_another_that_does() -> None:
    pool = pool_of(a=lacking("images"), b=down, c=ScriptedModel("C"))
    trace = await run([plan((1, "x", []))], pool, seeing(IMAGE))
    assert trace.text == "C"

    with pytest.raises(RunError, match="out of order"):
        await run([plan((1, "x", []))], pool_of(a=lacking("images"), b=down), seeing(IMAGE))


async def test_a_pinned_worker_answers_from_what_another_saw() -> None:
    pool = pool_of(a=lacking("images"), b="a cat")

    trace = await run("no plan", pool, seeing(IMAGE), policy=Policy(final="a"))
    assert [result.step.worker for result in trace.results] == ["b", "a"]
    assert trace.text == "A"

    no_way: dict[str, dict[str, Any]] = {
        "one step": {"limits": Limits(steps=1), "policy": Policy(final="a")},
        "no flow": {"policy": Policy(final="a", forbid=(Flow(reader="a", source="b"),))},
        "one worker": {"policy": Policy(single="a")},
    }
    for options in no_way.values():
        with pytest.raises(PolicyError) as refused:
            await run("no plan", pool, seeing(IMAGE), **options)
        assert refused.value.rule == "capabilities"


async def test_images_and_files_may_be_read_by_different_workers() -> None:
    pool = pool_of(a=lacking("images", "files"), b=lacking("files", reply="a cat"), c=lacking("images", reply="a dog"))
    trace = await run("no plan", pool, seeing(IMAGE, FILE))

    assert {result.step.worker for result in trace.results} >= {"b", "c"}
    assert trace.rounds[0].plan.source == "fallback"


async def test_in_a_later_round_what_was_seen_is_recalled() -> None:
    recalling = plan((0, "Write it better.", []), (0, "Check it.", ["all"]))
    planner = ScriptedModel([plan((1, "x", [])), recalling, ACCEPT])
    trace = await run(planner, pool_of(a=lacking("images"), b="a cat"), seeing(IMAGE), limits=Limits(rounds=2))

    assert (trace.text, len(trace.rounds), trace.rounds[1].plan.errors) == ("A", 2, ())


async def test_a_planner_sees_images_if_its_model_does_and_is_told_of_them_otherwise() -> None:
    for sees, expected in ((True, [IMAGE]), (False, [])):
        planner = ScriptedModel([plan((0, "x", []))], capabilities=ALL.model_copy(update={"images": sees}))
        await run(planner, pool_of(a="A"), seeing(IMAGE))
        message = planner.requests[0].messages[-1]
        assert [part for part in message.content if isinstance(part, ImagePart)] == expected
        assert "[image attached: image/png]" in message.text


async def test_nothing_is_said_where_every_worker_sees_the_image() -> None:
    planner = ScriptedModel([plan((0, "x", []))])
    await run(planner, pool_of(a="A", b="B"), seeing(IMAGE))
    assert "can read" not in planner.requests[0].messages[0].text


# --------------------------------------------------------------------------------------------- long inputs


async def test_a_planner_sees_a_bounded_view_of_a_long_question_and_workers_all_of_it() -> None:
    question = "Sum up:" + "x" * 1_000_000 + "the end"
    planner, model = ScriptedModel([plan((0, "x", []))]), ScriptedModel("A")

    await run(planner, pool_of(a=model), question)

    text = planner.requests[0].messages[-1].text
    assert len(text) < 33_000
    assert "Sum up:" in text
    assert "characters left out ...]" in text
    assert text.endswith("the end")
    assert question in model.requests[0].messages[0].text


async def test_the_view_of_a_planner_with_a_short_context_takes_half_of_it() -> None:
    planner = ScriptedModel([plan((0, "x", []))], capabilities=ALL.model_copy(update={"context": 4_000}))
    await run(planner, pool_of(a="A"), "x" * 100_000)
    assert 8_000 < len(planner.requests[0].messages[-1].text) < 8_200


async def test_a_question_longer_than_a_workers_context_goes_to_another_worker() -> None:
    short, long = lacking(context=8_000), ScriptedModel("B")
    planner = ScriptedModel([plan((0, "x", [])), plan((1, "x", []))])

    trace = await run(planner, pool_of(a=short, b=long), "x" * 1_000_000)

    assert (trace.text, short.requests) == ("B", [])
    assert "Model 0" not in planner.requests[0].messages[0].text
    assert differences(trace, await replay(trace)) == ()


async def test_a_question_that_no_worker_can_read_is_refused_before_any_call() -> None:
    planner, short = ScriptedModel([]), lacking(context=8_000)
    conductor = Conductor(planner, pool_of(a=short, b="B"), policy=Policy(final="a"))

    with pytest.raises(PolicyError, match=r"166,666 tokens or more, .* \(a: 8,000\); shorten it") as refused:
        await conductor.run("x" * 1_000_000)
    assert refused.value.rule == "capabilities"


async def test_a_step_whose_prompt_outgrows_a_context_moves_to_another_worker_without_a_call() -> None:
    """The question fits, but not with the reply that the step reads."""
    short, long = (
        lacking(context=1_000, name="short"),
        ScriptedModel(lambda request: "B" * (9_000 if "Draft" in str(request) else 1)),
    )
    planner = ScriptedModel([plan((1, "Draft.", []), (0, "Answer.", ["all"]))])

    trace = await run(planner, pool_of(a=short, b=long), "What is it?")

    last = trace.rounds[0].results[-1]
    assert (last.step.worker, last.planned_worker, short.requests) == ("b", "a", [])
    assert "the request has 1,5" in (last.error or "")
    assert "tokens or more, but the model's context is 1,000" in (last.error or "")
    assert [(call.outcome, call.usage.calls) for call in last.calls] == [("refused", 0), ("ok", 1)]
    assert differences(trace, await replay(trace)) == ()


async def test_long_replies_of_earlier_steps_are_truncated_visibly() -> None:
    last = ScriptedModel("B")
    planner = ScriptedModel([plan((0, "Draft.", []), (1, "Answer.", ["all"]))])

    await run(planner, pool_of(a="y" * 100_000, b=last), "What is it?")

    text = last.requests[0].messages[0].text
    assert text.count("y") < MAX_REPLY_CHARS + 200
    assert "[... 68,000 characters left out ...]" in text
