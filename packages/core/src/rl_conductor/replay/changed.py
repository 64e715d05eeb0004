"""Replays a trace with one step changed; the steps that don't depend on it reuse their replies."""

from __future__ import annotations

from pydantic import Field

from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConfigError
from rl_conductor.trace.events import Listener
from rl_conductor.trace.trace import PlanRecord, Round, Trace
from rl_conductor.types.value import UserValue
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy
from rl_conductor.workflow.workflow import Workflow


class StepChange(UserValue):
    """A new worker, subtask or both for one step; rounds and steps count from 0, and `None` keeps a part."""

    round: int = Field(default=0, ge=0)
    """The round of the step."""
    step: int = Field(ge=0)
    """Position of the step in its round."""
    worker: str | None = Field(default=None, min_length=1)
    """The worker that runs it instead."""
    subtask: str | None = Field(default=None, min_length=1)
    """The subtask that it gets instead."""


async def replay_changed(
    conductor: Conductor,
    trace: Trace,
    change: StepChange,
    *,
    policy: Policy | None = None,
    limits: Limits | None = None,
    on_event: Listener | None = None,
) -> Trace:
    """Runs `trace` again with one step changed, and returns the new trace.

    Only the changed step, the steps that depend on it, and failed steps that these read call models. The others keep
    their results at no cost, with a usage of 0 in the new trace. Later rounds are planned anew if the limits allow
    another round.

    Args:
        conductor: the conductor to run it with; usually the one that made the trace.
        trace: the original run.
        change: the step and its new worker, subtask or both.
        policy: replaces the policy of the original run.
        limits: replaces the limits of the original run.
        on_event: called with every event as it happens.

    Raises:
        ConfigError: there is no such step, or it can't be changed.
        WorkflowValidationError: the policy does not allow the changed plan, or the pool has no such worker.
        RunError: there is no answer; `error.trace` contains the errors and the usage.
    """
    previous_rounds = rounds_before(trace, change)
    workflow = previous_rounds[-1].plan.workflow
    policy, limits = Policy.or_default(policy, trace.policy), Limits.or_default(limits, trace.limits)
    if workflow is not None:  # `run` would plan anew instead of raising an error for a plan that is not allowed
        allowed = conductor.config.allowed_plans(trace.request, policy, limits)
        allowed.check_history(previous_rounds[:-1])
        allowed.check_workflow(workflow, allowed.space(previous_rounds[:-1]).relaxed_for(workflow))
    return await conductor.run(trace.request, resume=previous_rounds, policy=policy, limits=limits, on_event=on_event)


def rounds_before(trace: Trace, change: StepChange) -> tuple[Round, ...]:
    """Returns the rounds that a changed replay resumes from.

    These are the earlier rounds, and the changed one without the results that the change affects. Calls in them have no
    usage, because the original run paid for them.

    Raises:
        ConfigError: there is no such step, or it can't be changed.
    """
    if not is_changeable(trace, change.round) or change.step >= len(trace.rounds[change.round].results):
        raise ConfigError(
            f"the trace has no step {change.step} of round {change.round} that can be changed; both count from 0, and "
            "the round needs a plan and a result for every step"
        )
    changed_round = trace.rounds[change.round].without_usage()
    steps = [result.step for result in changed_round.results]
    update = {name: value for name in ("worker", "subtask") if (value := getattr(change, name)) is not None}
    steps[change.step] = steps[change.step].model_copy(update=update)
    workflow = Workflow(steps=tuple(steps))
    unaffected = [
        result
        for result in changed_round.results
        if result.index != change.step and change.step not in workflow.sources[result.index]
    ]
    needed = workflow.needed_after({result.index for result in unaffected if result.status == "ok"})
    return (
        *(round_.without_usage() for round_ in trace.rounds[: change.round]),
        Round(
            plan=PlanRecord(source="given", workflow=workflow),
            results=tuple(result for result in unaffected if result.index not in needed),
        ),
    )


def is_changeable(trace: Trace, round_index: int) -> bool:
    """Whether the round was planned and every step of it has a result, so that one of them can be changed."""
    if round_index >= len(trace.rounds):
        return False
    plan, results = trace.rounds[round_index].plan, trace.rounds[round_index].results
    is_planned = plan.workflow is not None and plan.source != "continuation"
    return is_planned and not trace.was_cancelled and bool(results)
