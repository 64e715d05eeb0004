"""The planner alone: response formats, samples, records."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from core.runs import SOON, Gated, forever, plan, rows, workflow
from rl_conductor.calls.context import RunContext
from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConfigError, ContextLengthError, ModelError
from rl_conductor.models.base import Capabilities
from rl_conductor.models.scripted import ALL, ScriptedModel
from rl_conductor.plan_text.forms import Form, render
from rl_conductor.plan_text.grammar import constraint
from rl_conductor.planning.plan_stream import PlanItem, PlanRequest, ReadyStep, read_plan
from rl_conductor.planning.planner import RESAMPLING_TEMPERATURE, Planner
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.prompting.plan_rules import SYSTEM
from rl_conductor.prompting.planner_prompt import QUESTION, REJECTED_PLAN_CHARS
from rl_conductor.text.reasoning import ReasoningStart
from rl_conductor.trace.events import Event, PlanDelta, PlanRejected, PlanStarted
from rl_conductor.trace.trace import PlanRecord
from rl_conductor.types import Card, Completion, Grammar, JsonFormat, Message, Roster, Sampling, Usage
from rl_conductor.workflow.example import PlanExample
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.policy import Flow, Policy
from rl_conductor.workflow.request_tokens import PLAN_TOKENS
from rl_conductor.workflow.workflow import Step

SPACE = PlanSpace(roster=("a", "b"), allowed=frozenset("ab"))
CARDS = (Card(name="a"), Card(name="b"))
TWO = plan((0, "x", []), (1, "y", ["all"]))
AS_ROWS = "".join(rows((0, "x", []), (1, "y", ["all"])))
AS_OBJECT = '{"reasoning": "r", "steps": [{"subtask": "x", "worker": 0, "access": []}]}'
NOTHING = Capabilities()
IN_PROCESS = {"runs_in": "process", "lengths": "check"}


async def plan_with(planner: Planner, **options: Any) -> tuple[PlanRecord, list[Event]]:
    events: list[Event] = []
    run = RunContext(limits=options.pop("limits", Limits()), retries=0, emit=events.append, delimiter_key="key")
    plan_request = PlanRequest(
        run=run,
        conversation=(Message.user("What is it?"),),
        space=options.pop("space", SPACE),
        cards=CARDS,
        **options,
    )
    return await read_plan(planner.stream(plan_request)), events


@pytest.mark.parametrize(
    ("can", "form", "plan_form", "format_type"),
    [
        (ALL, None, "rows", Grammar),
        (Capabilities(grammar=True), None, "rows", Grammar),
        (NOTHING, None, "lists", None),
        (Capabilities(json_schema=True), None, "object", JsonFormat),
        (ALL, "lists", "lists", Grammar),
        (ALL, "object", "object", JsonFormat),
        (Capabilities(grammar=True), "object", "object", None),
        (Capabilities(json_schema=True), "lists", "lists", None),
    ],
)
def test_the_response_format_is_one_that_the_model_supports(
    can: Capabilities, form: Form | None, plan_form: Form, format_type: type | None
) -> None:
    planner = Planner(model=ScriptedModel("", capabilities=can), form=form)

    assert planner.plan_form == plan_form
    assert type(planner.response_format(SPACE)) is (format_type or type(None))


@pytest.mark.parametrize("roster", ["anonymous", "ordinals"])
def test_trained_planners_keep_the_form_of_the_paper(roster: Roster) -> None:
    assert Planner(model=ScriptedModel("", capabilities=ALL), roster=roster).plan_form == "lists"


async def test_models_in_this_process_are_asked_in_the_full_wording_for_lists() -> None:
    """Measured: with the brief wording, Qwen2.5-Coder-0.5B let a writer calculate."""
    in_process = ALL.model_copy(update={"runs_in": "process"})
    small, large = ScriptedModel([TWO], capabilities=in_process), ScriptedModel([AS_ROWS])
    for model in (small, large):
        await plan_with(Planner(model=model))
    (small_prompt,), (large_prompt,) = small.requests, large.requests
    assert Planner(model=small).plan_form == "lists"
    assert small_prompt.messages[0].text.startswith(SYSTEM)
    assert 'Model 0 "' in small_prompt.messages[0].text
    assert len(small_prompt.messages) == len(large_prompt.messages)
    assert small_prompt.messages[-1].text == QUESTION.format(question="What is it?")


async def test_a_model_on_a_server_is_asked_in_the_wording_of_its_training() -> None:
    trained, in_process = ScriptedModel([TWO]), ALL.model_copy(update={"runs_in": "process"})
    planner = Planner(model=trained, wording="full")
    small = ScriptedModel([TWO], capabilities=in_process)
    await plan_with(planner)
    await plan_with(Planner(model=small))
    assert planner.plan_form == "lists"
    assert trained.requests[0].messages == small.requests[0].messages
    assert Planner(model=small, wording="brief").prompt_wording == "brief"


@pytest.mark.parametrize("planner", [None, len, {"model": "openai:gpt-6-sol"}])
def test_a_planner_that_is_not_a_model_is_refused_with_what_to_write(planner: Any) -> None:
    with pytest.raises(ConfigError, match=r"the planner: .* is not a model; pass a Planner, a model or"):
        Conductor(planner, {"a": ScriptedModel("x")})


def test_a_space_too_large_for_a_grammar_is_planned_without_one() -> None:
    wide = SPACE.model_copy(update={"max_steps": 20})

    assert Planner(model=ScriptedModel("")).response_format(wide) is None


def test_lengths_are_left_to_the_check_where_an_engine_counts_slowly() -> None:
    slow = ScriptedModel("", capabilities=Capabilities(grammar=True, lengths="check"))
    assert Planner(model=slow).response_format(SPACE) == constraint(SPACE, "rows", counted=False)
    assert Planner(model=ScriptedModel("")).response_format(SPACE) == constraint(SPACE, "rows")


@pytest.mark.parametrize(("form", "text"), [("lists", TWO), ("rows", AS_ROWS), ("object", AS_OBJECT)])
async def test_a_plan_is_recorded_as_written_and_as_read(form: Form, text: str) -> None:
    model = ScriptedModel([text])

    record, events = await plan_with(Planner(model=model, form=form))

    assert (record.source, record.text, record.form, record.constrained) == ("planner", text, form, True)
    assert record.workflow is not None
    assert record.workflow.steps[0] == Step(subtask="x", worker="a")
    assert len(record.calls) == 1
    assert isinstance(events[0], PlanStarted)
    assert "".join(event.text for event in events if isinstance(event, PlanDelta)) == text
    assert model.requests[0].response_format is not None
    assert model.requests[0].sampling.max_tokens == PLAN_TOKENS


def test_a_plan_has_room_for_the_budget_that_its_model_has_for_thinking() -> None:
    model = ScriptedModel("", capabilities=Capabilities(thinking_tokens=4_000))
    for planner in (Planner.of(model), Planner.from_pool(WorkerPool({"a": model}))):
        assert planner.sampling == Sampling(max_tokens=PLAN_TOKENS + 4_000)
    assert Planner.of(ScriptedModel("")).sampling == Sampling(max_tokens=PLAN_TOKENS)


async def test_each_sample_has_a_seed_of_its_own() -> None:
    model = ScriptedModel(["garbage", "garbage", TWO])

    record, events = await plan_with(Planner(model=model, sampling=Sampling(seed=7)))

    assert [request.sampling.seed for request in model.requests] == [7, 8, 9]
    assert [event.error for event in events if isinstance(event, PlanRejected)] == list(record.errors)


async def test_a_greedy_planner_draws_its_further_samples_else_it_would_say_the_same_again() -> None:
    model = ScriptedModel(["garbage", TWO])

    await plan_with(Planner(model=model, sampling=Sampling(temperature=0)))

    assert [request.sampling.temperature for request in model.requests] == [0, RESAMPLING_TEMPERATURE]


async def test_after_so_many_samples_planning_is_given_up() -> None:
    model = ScriptedModel("garbage")

    record, _ = await plan_with(Planner(model=model, samples=2))

    assert (record.source, record.workflow, len(record.errors), len(record.calls)) == ("fallback", None, 2, 2)


async def test_a_plan_that_may_not_run_costs_a_sample() -> None:
    model = ScriptedModel([plan((1, "x", [])), plan((0, "x", []))])

    record, _ = await plan_with(
        Planner(model=model), space=SPACE.model_copy(update={"allowed": frozenset("a"), "last": frozenset("a")})
    )

    assert record.workflow is not None
    assert record.workflow.steps[0].worker == "a"
    assert "'b' is not allowed" in record.errors[0]


async def test_small_mistakes_are_mended_or_cost_a_sample_as_one_likes() -> None:
    careless = "Sure!\n" + TWO.replace("model_id = ", "model_id: ") + "\nDone."

    repair_steps, _ = await plan_with(Planner(model=ScriptedModel([careless])))
    strict, _ = await plan_with(Planner(model=ScriptedModel([careless, TWO]), form="lists", repair=False))

    assert repair_steps.repairs
    assert (len(strict.errors), strict.repairs) == (1, ())


@pytest.mark.parametrize(
    ("error", "samples"),
    [
        (ModelError("down", model="p"), 1),
        (ModelError("down", model="p", retryable=True), 1),
        ([TWO[:9], ModelError("reset", model="p", retryable=True)], 2),
        ([TWO[:9], ModelError("filtered", model="p")], 1),
    ],
)
async def test_another_sample_is_drawn_only_where_it_may_help(error: Any, samples: int) -> None:
    model = ScriptedModel([error, TWO])

    record, _ = await plan_with(Planner(model=model))

    assert len(model.requests) == samples
    assert record.source == ("planner" if samples == 2 else "fallback")


async def test_rules_that_leave_no_plan_at_all_are_not_asked_for_one() -> None:
    model = ScriptedModel("never")
    nothing = frozenset((reader, source) for reader in "ab" for source in "ab")
    space = SPACE.model_copy(
        update={"min_steps": 2, "last_reads_all": True, "last": frozenset("a"), "forbidden_flows": nothing}
    )

    record, _ = await plan_with(Planner(model=model), space=space)

    assert (record.source, model.requests) == ("fallback", [])
    assert "no plan is possible" in record.errors[0]


async def test_the_calls_made_are_known_even_when_planning_is_cut_short() -> None:
    calls: list[Any] = []
    errors: list[str] = []
    with pytest.raises(AssertionError):
        await plan_with(Planner(model=ScriptedModel(["garbage"])), calls=calls, errors=errors)

    assert (len(calls), len(errors)) == (2, 1)  # the second one is the call that was cut short


# ---------------------------------------------------------------------------- asking again with the reason

SIX = plan(*((0, f"part {number}", []) for number in range(5)), (1, "Combine.", ["all"]))


async def test_the_next_request_carries_the_rejected_plan_and_what_was_wrong_with_it() -> None:
    bad = plan((7, "x", []))
    model = ScriptedModel([bad, TWO])

    record, _ = await plan_with(Planner(model=model))

    first, second = (request.messages for request in model.requests)
    assert second[: len(first)] == first
    assert [message.role for message in second[len(first) :]] == ["assistant", "user"]
    assert second[-2].text == bad
    assert record.errors[0] in second[-1].text
    assert "there is no worker 7" in second[-1].text


async def test_only_the_last_rejected_plan_is_shown_so_that_requests_stay_bounded() -> None:
    model = ScriptedModel(["one", "two " * REJECTED_PLAN_CHARS, "three", TWO])

    await plan_with(Planner(model=model))

    base = len(model.requests[0].messages)
    assert [len(request.messages) - base for request in model.requests] == [0, 2, 2, 2]
    assert len(model.requests[2].messages[-2].text) == REJECTED_PLAN_CHARS
    assert model.requests[3].messages[-2].text == "three"


async def test_a_plan_that_broke_off_is_asked_for_again_without_blame() -> None:
    model = ScriptedModel([[TWO[:9], ModelError("reset", model="p", retryable=True)], TWO])

    await plan_with(Planner(model=model))

    assert model.requests[0].messages == model.requests[1].messages


async def test_a_rejected_plan_that_makes_the_request_too_long_is_left_out_of_the_next_one() -> None:
    model = ScriptedModel(["garbage", ContextLengthError("too long", model="p"), TWO])

    record, _ = await plan_with(Planner(model=model))

    assert record.source == "planner"
    assert model.requests[2].messages == model.requests[0].messages


async def test_a_planner_that_never_writes_a_plan_is_asked_as_often_as_configured_and_no_more() -> None:
    model = ScriptedModel(lambda _: "I can't do that.")

    record, _ = await plan_with(Planner(model=model, samples=3))

    assert (record.source, len(model.requests), len(record.errors)) == ("fallback", 3, 3)


async def test_a_plan_with_too_many_steps_is_asked_for_again_before_it_is_shortened() -> None:
    model = ScriptedModel([SIX, TWO])

    record, _ = await plan_with(Planner(model=model))

    assert "6 steps, but 1 to 5 are allowed" in model.requests[1].messages[-1].text
    assert (record.text, record.repairs) == (TWO, ())


@pytest.mark.parametrize("then", [[SIX], ["garbage"] * 4, [ModelError("down", model="p")]])
async def test_else_it_is_shortened_and_the_step_that_combines_stays_the_last(then: Any) -> None:
    model = ScriptedModel([SIX, *then])

    record, _ = await plan_with(Planner(model=model))

    assert record.workflow is not None
    assert record.workflow.steps[-1] == Step(subtask="Combine.", worker="b", access=frozenset(range(4)))
    assert "a plan of 6 steps was shortened to 5" in record.repairs
    assert (record.source, record.text) == ("planner", SIX)
    assert len(record.calls) == len(model.requests) == 1 + len(then)


@pytest.mark.parametrize("form", ["rows", "object"])
async def test_a_plan_that_is_cut_off_before_its_last_step_is_rejected(form: Form) -> None:
    space = SPACE.model_copy(update={"max_steps": 6})
    flow = workflow(*((name, f"do {number}", []) for number, name in enumerate("abab")))
    whole = render(flow, space, form)
    cut = Completion(
        message=Message.assistant(whole[: whole.rindex("\n[" if form == "rows" else '{"subtask"')].rstrip(", \n")),
        finish_reason="length",
        model="m",
        usage=Usage(calls=1),
    )
    model = ScriptedModel([cut, whole])

    record, _ = await plan_with(Planner(model=model, form=form), space=space)

    assert record.workflow == flow
    assert "cut off at 1024 tokens" in model.requests[1].messages[-1].text


async def test_steps_as_separate_objects_that_are_cut_off_are_rejected() -> None:
    first = Message.assistant('{"subtask": "x", "worker": 0, "access": []}')
    cut = Completion(message=first, finish_reason="length", model="m", usage=Usage(calls=1))

    record, _ = await plan_with(Planner(model=ScriptedModel([cut, AS_ROWS])))

    assert record.text == AS_ROWS
    assert "cut off at 1024 tokens" in record.errors[0]


async def test_a_model_that_goes_on_after_its_plan_has_written_one() -> None:
    rambling = Completion(
        message=Message.assistant(f"{TWO}\nAnd so on, and so"), finish_reason="length", model="m", usage=Usage(calls=1)
    )

    record, _ = await plan_with(Planner(model=ScriptedModel([rambling])))

    assert (record.source, record.errors) == ("planner", ())


# ---------------------------------------------------------------------------------- the plan stream


async def stream_of(planner: Planner, space: PlanSpace = SPACE) -> list[PlanItem]:
    request = PlanRequest(
        run=RunContext(retries=0), conversation=(Message.user("What is it?"),), space=space, cards=CARDS
    )
    return [item async for item in planner.stream(request)]


def steps_of(items: list[PlanItem]) -> list[Step]:
    steps = [item for item in items if isinstance(item, ReadyStep)]
    assert [item.index for item in steps] == list(range(len(steps)))
    return [item.step for item in steps]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (rows((0, "x", []), (1, "y", ["all"])), [Step(subtask="x", worker="a")]),
        (
            list("Think [hard].\n" + "".join(rows((0, "x", []), (1, "y [z]", []), (1, "z", [])))),
            [Step(subtask="x", worker="a"), Step(subtask="y [z]", worker="b")],
        ),
        (rows((0, "x", [])), []),
        ([*rows((0, "x", [])), "\n"], []),
    ],
)
async def test_each_row_is_yielded_once_the_next_one_begins(pieces: list[str], expected: list[Step]) -> None:
    items = await stream_of(Planner(model=ScriptedModel([pieces]), samples=1))

    assert steps_of(items) == expected
    assert isinstance(items[-1], PlanRecord)
    assert items[-1].form == "rows"


@pytest.mark.parametrize("start", ["outside", "inside"])
async def test_only_steps_after_the_thinking_are_yielded(start: ReasoningStart) -> None:
    draft = rows((1, "a draft", []), (0, "no", []))
    opening = ["<think>\n"] if start == "outside" else []
    pieces = [*opening, *draft, "\nRather not.\n</think>\n", *rows((0, "x", []), (1, "y", ["all"]))]
    model = ScriptedModel([pieces], capabilities=Capabilities(reasoning_start=start))

    items = await stream_of(Planner(model=model, form="rows", samples=1))

    assert steps_of(items) == [Step(subtask="x", worker="a")]


async def test_no_position_is_yielded_twice_when_thinking_comes_late() -> None:
    first, second = rows((0, "x", []), (1, "y", [])), rows((1, "z", []), (0, "end", []))
    pieces = [*first, "\n<think>No.</think>\n", *second]

    items = await stream_of(Planner(model=ScriptedModel([pieces]), form="rows", samples=1))

    assert steps_of(items) == [Step(subtask="x", worker="a")]


async def test_brackets_in_subtasks_cost_no_parse() -> None:
    three = PlanSpace(roster=("a", "b"), allowed=frozenset("ab"), max_steps=3)
    text = render(workflow(("a", "[" * 300, ()), ("b", "y", ()), ("a", "z", ())), three, "rows")

    items = await stream_of(Planner(model=ScriptedModel([list(text)]), samples=1), three)

    assert [step.subtask for step in steps_of(items)] == ["[" * 300, "y"]


async def test_a_plan_that_is_a_json_object_yields_its_steps_as_well() -> None:
    three = PlanSpace(roster=("a", "b"), allowed=frozenset("ab"), max_steps=3)
    text = render(workflow(("a", "x", ()), ("b", "y {z}", ()), ("a", "end", (0, 1))), three, "object", reasoning="r")

    items = await stream_of(Planner(model=ScriptedModel([list(text)]), form="object", samples=1), three)

    assert steps_of(items) == [Step(subtask="x", worker="a"), Step(subtask="y {z}", worker="b")]


async def test_the_number_of_times_an_unfinished_plan_is_parsed_is_bounded() -> None:
    text = render(workflow(("a", "{" * 300, ()), ("b", "y", ())), SPACE, "object", reasoning="r")

    items = await stream_of(Planner(model=ScriptedModel([list(text)]), form="object", samples=1))

    assert steps_of(items) == [], "the second step began after too many brackets"
    assert isinstance(items[-1], PlanRecord)
    assert items[-1].source == "planner"


async def test_a_step_that_may_not_run_is_not_yielded() -> None:
    space = SPACE.model_copy(update={"allowed": frozenset("b")})
    model = ScriptedModel([rows((0, "x", []), (1, "y", []))])

    assert steps_of(await stream_of(Planner(model=model, samples=1), space)) == []


async def test_a_rejected_sample_takes_back_its_steps() -> None:
    rejected = [*rows((0, "x", []), (1, "y", [])), "garbage"]
    items = await stream_of(Planner(model=ScriptedModel([rejected, AS_ROWS]), repair=False))

    assert [type(item) for item in items] == [ReadyStep, PlanRejected, ReadyStep, PlanRecord]


async def test_closing_the_stream_cancels_the_call_and_keeps_its_record() -> None:
    request = PlanRequest(run=RunContext(), conversation=(Message.user("What is it?"),), space=SPACE, cards=CARDS)
    hangs = Gated("never", forever)
    stream = Planner(model=hangs).stream(request)
    reading = asyncio.create_task(anext(stream))
    await asyncio.wait_for(hangs.asked.wait(), SOON)

    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading

    assert [call.outcome for call in request.calls] == ["cancelled"]


@pytest.mark.parametrize("grammar", [True, False])
def test_a_conductor_says_at_construction_which_rules_its_grammar_does_not_hold(
    grammar: bool, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"w{i}" for i in range(20)]
    forbid = tuple(Flow(reader=reader, source=names[i * 7 % 20]) for i, reader in enumerate(names))
    model = ScriptedModel("", name=f"planner-{grammar}", capabilities=Capabilities(grammar=grammar))

    for _ in range(2):
        Conductor(model, {name: ScriptedModel("") for name in names}, policy=Policy(forbid=forbid))

    said = [record.getMessage() for record in caplog.records if "grammar" in record.getMessage()]
    assert len(said) == grammar
    assert all("policy.forbid closes 20 flows" in text for text in said)


def test_a_planner_with_every_option_is_restored_from_its_setup() -> None:
    planner = Planner(
        model=ScriptedModel("", capabilities=ALL.model_copy(update={"context": 9, **IN_PROCESS})),
        form="object",
        roster="anonymous",
        wording="brief",
        examples=[PlanExample(question="?", workflow=workflow(("a", "x", [])))],
        instructions="Be brief.",
        samples=2,
        repair=False,
        sampling=Sampling(seed=7),
        card=Card(name="planner", tags=frozenset({"internal"})),
    )
    setup = planner.setup
    default = Planner(model=ScriptedModel("", capabilities=NOTHING)).setup
    model = ScriptedModel("", capabilities=setup.capabilities)

    assert [name for name, value in default if value == getattr(setup, name)] == []
    assert Planner.from_setup(setup, model).setup == setup
