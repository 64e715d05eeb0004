"""A run again from its record: the same calls, the same answer, and no model asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from rl_conductor import Card, Conductor, Planner, ScriptedModel, Worker, WorkerPool
from rl_conductor.errors import ConfigError, ModelError, RateLimitError, RunError
from rl_conductor.models.base import Capabilities
from rl_conductor.models.scripted import Scripted
from rl_conductor.models.vendor_errors import status_error
from rl_conductor.replay import differences, replay
from rl_conductor.trace.trace import Call, PlanRecord, Round, Trace
from rl_conductor.types import JsonFormat, Message, Price, Request, Sampling, Wording
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.workflow import Step, Workflow

PLAN = 'Two solve.\nmodel_id = [0, 1]\nsubtasks = ["Add the numbers.", "Check the sum."]\naccess_list = [[], ["all"]]'
DEAR = Price(input=1, output=1)


def conductor(
    *, plans: list[Scripted] | str = PLAN, first: Any = "It is 42.", second: Any = "Checked: 42.", **options: Any
) -> Conductor:
    pool = WorkerPool(
        [
            Worker.of("adder", ScriptedModel(first, name="a"), card=Card(name="adder", strengths="sums")),
            Worker.of("checker", ScriptedModel(second, name="c")),
        ]
    )
    return Conductor(Planner(model=ScriptedModel(plans, name="p")), pool, **options)


def reread(trace: Trace) -> Trace:
    """The trace as it comes back from a file."""
    return Trace.model_validate_json(trace.model_dump_json())


def rewritten(trace: Trace, step: int, text: str, other: str) -> Trace:
    """`trace` with a text replaced in all that is recorded of one step."""
    data = json.loads(trace.model_dump_json())
    results = data["rounds"][0]["results"]
    results[step] = json.loads(json.dumps(results[step]).replace(text, other))
    return Trace.model_validate(data)


def without_times(call: Call) -> Call:
    return call.model_copy(update={"started": 0.0, "seconds": 0.0})


async def test_a_replay_makes_the_same_calls_and_gets_the_same_answer() -> None:
    recorded = reread(await conductor().run("What is 40 + 2?"))

    again = await replay(recorded)

    assert differences(recorded, again) == ()
    assert [without_times(call) for call in again.calls] == [without_times(call) for call in recorded.calls]
    assert again.completion == recorded.completion
    assert again.usage == recorded.usage


async def test_a_replay_takes_as_long_as_it_needs() -> None:
    recorded = await conductor().run("What is 40 + 2?", limits=Limits(seconds=60))
    slow = recorded.model_copy(update={"limits": Limits(seconds=1e-6)})

    assert differences(slow, await replay(slow)) == ()


async def test_rounds_that_accept_or_plan_anew_are_replayed() -> None:
    plans: list[Scripted] = [PLAN, PLAN, "Good.\nmodel_id = []\nsubtasks = []\naccess_list = []"]
    recorded = reread(await conductor(plans=plans, limits=Limits(rounds=3)).run("What is 40 + 2?"))
    assert len(recorded.rounds) == 3

    assert differences(recorded, await replay(recorded)) == ()


async def test_a_resumed_run_with_more_rounds_than_its_limits_is_replayed() -> None:
    whole = await conductor(plans=[PLAN, PLAN]).run("What is 40 + 2?", limits=Limits(rounds=2))
    call = whole.rounds[1].plan.calls[0].model_copy(update={"outcome": "cancelled", "completion": None})
    cut_short = Round(plan=PlanRecord(source="planner", errors=("cancelled",), calls=(call,)))
    for rounds in (whole.rounds, (whole.rounds[0], cut_short)):
        resumed = reread(await conductor().run("What is 40 + 2?", resume=rounds, limits=Limits(rounds=1)))
        assert len(resumed.rounds) == 2
        assert differences(resumed, await replay(resumed)) == ()


async def test_a_retry_that_the_run_did_not_allow_is_replayed() -> None:
    failure = ModelError("bound to another event loop", model="a", retryable=True)
    failure.min_retries = 1
    recorded = reread(await conductor(first=[failure, "It is 42."], retries=0).run("What is 40 + 2?"))

    again = await replay(recorded)

    assert differences(recorded, again) == ()
    assert [call.outcome for call in again.calls] == ["ok", "error", "ok", "ok"]


async def test_retries_rejected_plans_and_replaced_workers_are_replayed_without_waiting() -> None:
    failing = [RateLimitError("slow down", model="a", status=429, retry_after=0.01), ModelError("broken", model="a")]
    recorded = reread(await conductor(plans=["no plan at all", PLAN], first=failing).run("What is 40 + 2?"))
    assert [call.outcome for call in recorded.rounds[0].results[0].calls] == ["error", "error", "ok"]

    again = await replay(recorded)

    assert differences(recorded, again) == ()
    assert again.usage == recorded.usage
    assert again.rounds[0].plan.errors == recorded.rounds[0].plan.errors


def broken_off() -> list[Any]:
    """A reply that ends in the middle, for a reason that may pass."""
    return ["So: ", ModelError("it broke off", model="m", retryable=True)]


@pytest.mark.parametrize("seed", [None, 7])
async def test_plans_that_broke_off_are_sampled_again_and_not_retried(seed: int | None) -> None:
    model = ScriptedModel([broken_off(), broken_off(), broken_off(), broken_off(), PLAN], name="p")
    planner = Planner(model=model, sampling=Sampling(seed=seed))
    recorded = reread(await Conductor(planner, conductor().pool).run("What is 40 + 2?"))
    assert len(recorded.rounds[0].plan.errors) == 4

    again = await replay(recorded)

    assert differences(recorded, again) == ()
    assert again.rounds[0].plan.errors == recorded.rounds[0].plan.errors


async def test_an_answer_that_broke_off_while_it_was_heard_is_replayed_to_the_same_end() -> None:
    with pytest.raises(RunError) as failed:
        await conductor(second=[broken_off()]).run("What is 40 + 2?", stream=True)
    recorded = reread(failed.value.trace)

    again = await replay(recorded)

    assert differences(recorded, again) == ()
    assert again.error == recorded.error


async def test_a_call_that_was_not_worth_waiting_for_is_not_repeated() -> None:
    later = RateLimitError("come back tomorrow", model="a", status=429, retry_after=86_400)
    recorded = reread(await conductor(first=lambda _: later).run("What is 40 + 2?"))
    assert [call.outcome for call in recorded.rounds[0].results[0].calls] == ["error", "ok"]

    assert differences(recorded, await replay(recorded)) == ()


async def test_a_failed_call_that_may_have_been_billed_counts_again() -> None:
    failing = ScriptedModel([ModelError("broke off", model="d"), "It is 42."], name="d", price=DEAR)
    pool = WorkerPool({"dear": failing, "other": ScriptedModel("It is 41.", name="o", price=DEAR)})
    plan = 'model_id = [0]\nsubtasks = ["Add."]\naccess_list = [[]]'
    recorded = reread(await Conductor(ScriptedModel(plan, name="p"), pool).run("Sum?"))
    assert recorded.usage.unpriced_calls == 1

    assert (await replay(recorded)).usage == recorded.usage


@pytest.mark.parametrize("is_overload", [True, False])
async def test_an_overload_costs_as_much_again_as_it_did(is_overload: bool) -> None:
    error = status_error("overloaded", model="d", status=503, retry_after=0.01, is_overload=is_overload)
    failing = ScriptedModel([error, "It is 42."], name="d", price=DEAR)
    pool = WorkerPool({"dear": failing, "other": ScriptedModel("It is 41.", name="o", price=DEAR)})
    plan = 'model_id = [0]\nsubtasks = ["Add."]\naccess_list = [[]]'
    recorded = reread(await Conductor(ScriptedModel(plan, name="p"), pool).run("Sum?"))
    assert recorded.usage.unpriced_calls == int(not is_overload)

    assert (await replay(recorded)).usage == recorded.usage


async def test_a_rejection_after_the_reply_had_begun_counts_again() -> None:
    shed: list[str | Exception] = [
        "",
        ModelError("overloaded", model="d", status=529),
    ]  # such as after pieces of tool calls
    failing = ScriptedModel([shed], name="d", price=DEAR)
    pool = WorkerPool({"dear": failing, "other": ScriptedModel("It is 41.", name="o", price=DEAR)})
    plan = 'model_id = [0]\nsubtasks = ["Add."]\naccess_list = [[]]'
    recorded = reread(await Conductor(ScriptedModel(plan, name="p"), pool).run("Sum?", stream=True))
    assert recorded.usage.unpriced_calls == 1

    assert (await replay(recorded)).usage == recorded.usage


async def test_the_slower_of_two_calls_is_no_difference() -> None:
    slow = Worker.of("slow", ScriptedModel("Late.", name="s", delay=30), hedge_after=0.01)
    pool = WorkerPool([slow, Worker.of("quick", ScriptedModel("Soon.", name="q"))])
    plan = 'model_id = [0]\nsubtasks = ["Hurry."]\naccess_list = [[]]'
    recorded = reread(await Conductor(ScriptedModel(plan, name="p"), pool, limits=Limits(hedges=1)).run("Now?"))
    assert sorted(call.outcome for call in recorded.rounds[0].results[0].calls) == ["cancelled", "ok"]

    assert differences(recorded, await replay(recorded)) == ()


def broken(_: Request) -> Exception:
    return ModelError("broken", model="m")


async def hedged(slow: Any, hedge: Any, *, others: Mapping[str, Any], calls: int | None = None) -> Trace:
    """A run of one step in which the slow worker, which comes first, ends after its hedge."""
    workers = [
        Worker.of("slow", ScriptedModel(slow, name="s", delay=0.2), hedge_after=0.01),
        Worker.of("hedge", ScriptedModel(hedge, name="h"), card=Card(name="hedge", accuracy={"all": 1.0})),
        *[Worker.of(name, ScriptedModel(script, name=name)) for name, script in others.items()],
    ]
    conductor = Conductor(ScriptedModel([]), WorkerPool(workers), limits=Limits(hedges=1, calls=calls))
    try:
        trace = await conductor.run("Now?", workflow=Workflow(steps=(Step(subtask="Hurry.", worker="slow"),)))
    except RunError as failed:
        trace = failed.trace
    assert {call.worker for call in trace.calls} == {"slow", "hedge", *others}
    return reread(trace)


async def test_a_hedged_call_that_a_limit_refused_is_no_difference() -> None:
    recorded = await hedged("Late.", "Too many.", others={}, calls=1)
    assert {call.worker: call.outcome for call in recorded.calls} == {"hedge": "refused", "slow": "ok"}

    assert differences(recorded, await replay(recorded)) == ()


@pytest.mark.parametrize("slow", ["Late.", broken], ids=["and the other did not", "and so did the other"])
async def test_a_hedged_call_that_failed_is_no_difference(slow: Any) -> None:
    recorded = await hedged(slow, broken, others={})
    assert [call.worker for call in recorded.calls] == ["hedge", "slow"]

    assert differences(recorded, await replay(recorded)) == ()


async def test_the_order_in_which_two_hedged_calls_failed_is_no_difference() -> None:
    recorded = await hedged(broken, broken, others={"last": "Here."})
    assert [call.worker for call in recorded.calls] == ["hedge", "slow", "last"]

    assert differences(recorded, await replay(recorded)) == ()


async def test_a_run_without_an_answer_is_replayed_to_the_same_end() -> None:
    with pytest.raises(RunError) as failed:
        await conductor(
            first=lambda _: ModelError("down", model="a"), second=lambda _: ModelError("no", model="c")
        ).run("Sum?")
    recorded = reread(failed.value.trace)

    again = await replay(recorded)

    assert (again.completion, again.error) == (None, recorded.error)
    assert differences(recorded, again) == ()


async def test_replies_without_the_required_format_are_replayed_to_the_same_end() -> None:
    request = Request(messages=(Message.user("Sum?"),), response_format=JsonFormat())
    with pytest.raises(RunError) as failed:
        await conductor(retries=1).run(request)
    recorded = reread(failed.value.trace)
    assert recorded.rejected is not None

    again = await replay(recorded)

    assert (again.completion, again.error) == (None, recorded.error)
    assert differences(recorded, again) == ()


async def test_what_a_limit_refused_is_refused_again() -> None:
    pool = WorkerPool({"dear": ScriptedModel("Hello.", name="d", price=DEAR)})
    refusing = Conductor(ScriptedModel(PLAN, name="p", price=DEAR), pool, limits=Limits(usd=0))
    with pytest.raises(RunError) as failed:
        await refusing.run("Sum?")
    recorded = reread(failed.value.trace)
    assert {call.outcome for call in recorded.calls} == {"refused"}

    again = await replay(recorded)

    assert differences(recorded, again) == ()
    assert again.usage.calls == 0


async def test_a_given_workflow_is_replayed_without_planning() -> None:
    workflow = Workflow(steps=(Step(subtask="Say it.", worker="checker"),))
    recorded = reread(await conductor(plans=[]).run("Sum?", workflow=workflow))

    again = await replay(recorded)

    assert again.rounds[0].plan.source == "given"
    assert differences(recorded, again) == ()


async def test_an_altered_reply_shows_at_the_step_that_read_it() -> None:
    recorded = await conductor().run("What is 40 + 2?")
    altered = rewritten(recorded, 0, "It is 42.", "It is 43.")

    found = differences(altered, await replay(altered))

    assert any("round 1, step 2: the request to scripted:c differs" in line and "43" in line for line in found)


async def test_a_reply_that_is_altered_in_the_requests_too_shows_by_the_nonces() -> None:
    recorded = await conductor().run("What is 40 + 2?")
    altered = rewritten(rewritten(recorded, 1, "It is 42.", "It is 43."), 0, "It is 42.", "It is 43.")

    found = differences(altered, await replay(altered))

    assert any("only in the nonces of its delimiters" in line for line in found)


async def test_an_altered_plan_shows_at_the_planner() -> None:
    recorded = await conductor().run("What is 40 + 2?")
    data = json.loads(recorded.model_dump_json())
    data["rounds"][0]["plan"]["workflow"]["steps"][0]["subtask"] = "Subtract them."

    altered = Trace.model_validate(data)

    assert "round 1, planner: the plan differs" in differences(altered, await replay(altered))


async def test_a_trace_without_prompts_is_replayed_by_its_fingerprints() -> None:
    recorded = reread(await conductor(keep_prompts=False).run("What is 40 + 2?"))
    assert all(call.request is None for call in recorded.calls)
    assert differences(recorded, await replay(recorded)) == ()

    other = recorded.model_copy(update={"delimiter_key": "00"})

    assert any("contains no requests" in line for line in differences(other, await replay(other)))


async def test_another_delimiter_key_changes_nothing_but_the_marks() -> None:
    recorded = await conductor().run("What is 40 + 2?")
    other = recorded.model_copy(update={"delimiter_key": "00"})

    assert any("only in the nonces of its delimiters" in line for line in differences(other, await replay(other)))


async def test_changed_prompts_are_named_first() -> None:
    recorded = await conductor().run("What is 40 + 2?")
    old = recorded.model_copy(update={"versions": recorded.versions.model_copy(update={"prompt": "0ld"})})

    assert differences(old, await replay(old))[0].startswith("the prompt templates have changed: version 0ld")


async def test_a_round_a_step_or_a_call_that_is_missing_is_named() -> None:
    recorded = await conductor().run("What is 40 + 2?")
    one = recorded.rounds[0]
    fewer = one.model_copy(update={"results": one.results[:1]})
    uncalled = one.model_copy(update={"results": (one.results[0], one.results[1].model_copy(update={"calls": ()}))})

    assert "round 1: missing in the replay" in differences(recorded, recorded.model_copy(update={"rounds": ()}))
    assert "round 1, step 2: missing in the replay" in differences(
        recorded, recorded.model_copy(update={"rounds": (fewer,)})
    )
    assert "round 1, step 2: scripted:c was not called" in differences(
        recorded, recorded.model_copy(update={"rounds": (uncalled,)})
    )


async def test_a_trace_that_was_not_made_by_a_run_is_refused() -> None:
    recorded = await conductor().run("What is 40 + 2?")

    with pytest.raises(ConfigError, match="planner and pool"):
        await replay(recorded.model_copy(update={"setup": None}))


async def test_a_run_that_was_cut_short_is_refused() -> None:
    recorded = await conductor().run("What is 40 + 2?")

    with pytest.raises(ConfigError, match="was cancelled"):
        await replay(recorded.model_copy(update={"completion": None, "error": "cancelled"}))


@pytest.mark.parametrize(
    "capabilities",
    [
        Capabilities(grammar=True, runs_in="process"),
        Capabilities(grammar=True, lengths="check"),
        Capabilities(json_schema=True, array_bounds=True, context=8_000),
    ],
    ids=str,
)
@pytest.mark.parametrize("wording", [None, "full", "brief"])
async def test_a_planner_of_any_capabilities_is_replayed_with_its_own_prompt(
    capabilities: Capabilities, wording: Wording | None
) -> None:
    solver = conductor()
    model = ScriptedModel(PLAN, name="p", capabilities=capabilities)
    planner = Planner(model=model, form="lists", wording=wording)
    recorded = reread(await Conductor(planner, solver.pool).run("What is 40 + 2?"))
    assert differences(recorded, await replay(recorded)) == ()
