"""Selects the parts of an interrupted run that the current policy still allows. Pure.

The run may have begun under another policy or pool. A reply is dropped when its worker is no longer allowed or may no
longer read its inputs, and so is every reply that was generated from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rl_conductor.errors import ConfigError
from rl_conductor.execution.allowed_plans import AllowedPlans
from rl_conductor.trace.trace import Call, Round, StepResult, Trace
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.workflow import Workflow


@dataclass(frozen=True)
class RestoredRound:
    """The results of an interrupted round."""

    results: tuple[StepResult, ...]
    """The results that are reused."""
    abandoned_calls: tuple[Call, ...]
    """Calls of the steps that have to run again."""
    errors: tuple[str, ...]
    """Why replies were dropped."""


def restore_results(
    workflow: Workflow,
    results: Sequence[StepResult],
    space: PlanSpace,
    allowed: AllowedPlans,
    unchecked: Mapping[int, str],
) -> RestoredRound:
    """Selects the `results` that are reused; the other steps of `workflow`, which `space` allows, run again.

    A failed step runs again only if a step that reads it has to run; otherwise nothing would read its reply.

    Args:
        workflow: the plan of the round.
        results: the results of its steps so far.
        space: the plans that the round may have.
        allowed: names the policy fields behind the rules that are broken.
        unchecked: by position, the guardrails that did not check a step's reply.
    """
    results = sorted(results, key=lambda result: result.index)
    steps, reused, dropped, errors = list(workflow.steps), set[int](), set[int](), []
    for result in results:
        if result.status != "ok":
            continue
        if not _belongs_to(workflow, result):
            errors.append(f"the reply of step {result.index + 1} is dropped: it belongs to another plan")
            dropped.add(result.index)
            continue
        planned, steps[result.index] = workflow.steps[result.index], result.step
        violations = allowed.violations(Workflow(steps=tuple(steps)), space)
        stale = sorted(dropped & result.step.access)
        unseen = unchecked.get(result.index)
        if violations or stale or unseen:
            steps[result.index] = planned
            dropped.add(result.index)
            reason = "; ".join(violations) or (unseen and f"it was not checked by the guardrail {unseen}")
            reason = reason or f"it was made from the reply of step {stale[0] + 1}"
            errors.append(f"step {result.index + 1} runs again, and its earlier reply is dropped: {reason}")
        else:
            reused.add(result.index)
    needed = workflow.needed_after(reused)
    reused |= {r.index for r in results if r.status == "failed" and r.index not in needed and _belongs_to(workflow, r)}
    repeated = (result for result in results if result.index not in reused)
    return RestoredRound(
        results=tuple(result for result in results if result.index in reused),
        abandoned_calls=tuple(call for result in repeated for call in result.calls),
        errors=tuple(errors),
    )


def _belongs_to(workflow: Workflow, result: StepResult) -> bool:
    """Whether a result is of a step of `workflow`, perhaps by another worker."""
    if result.index >= len(workflow.steps):
        return False
    planned = workflow.steps[result.index]
    return result.step.model_copy(update={"worker": planned.worker}) == planned


def resumable_rounds(rounds: Sequence[Round], allowed: AllowedPlans) -> tuple[list[Round], list[str]]:
    """Selects the rounds that are reused, of which the last is resumed, and says why those after it are dropped.

    Calls of dropped rounds are added to the last round's plan, because they have been paid for.
    """
    broken = allowed.first_break(rounds[:-1])
    if broken is None:
        return list(rounds), []
    end, error = broken
    last = rounds[end]
    calls = tuple(call for round_ in rounds[end + 1 :] for call in round_.calls)
    plan = last.plan.model_copy(update={"calls": (*last.plan.calls, *calls)})
    return [*rounds[:end], last.model_copy(update={"plan": plan})], [error]


def split_resumed(workflow: Workflow | None, resume: Sequence[Round]) -> tuple[Sequence[Round], Round | None]:
    """Returns the finished rounds of the run to resume, and the last one, which was interrupted.

    Raises:
        ConfigError: `resume` is a trace, or a caller's `workflow` is not the plan of the first of its rounds.
    """
    if isinstance(resume, Trace):
        raise ConfigError("resume is a Trace; write resume=trace.rounds")
    if workflow is not None and resume and resume[0].plan.is_complete and resume[0].plan.workflow != workflow:
        raise ConfigError(
            "workflow=... is not the plan of the first round of the run to resume: leave out workflow to go on with "
            "that plan, or leave out resume to run the workflow from its start"
        )
    return resume[:-1], resume[-1] if resume else None
