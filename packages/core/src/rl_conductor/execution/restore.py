"""What today's policy still allows of a run that was interrupted. Pure.

The run may have begun under another policy or another pool. A reply that its worker may not give now, or may not have
read for now, is dropped with every reply that was made from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rl_conductor.errors import ConfigError, WorkflowValidationError
from rl_conductor.planning.recursion import later_space, may_hear
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.trace.trace import Call, PlanRecord, Round, StepResult
from rl_conductor.types import Card, Continuation, Request
from rl_conductor.workflow.policy import Policy
from rl_conductor.workflow.workflow import PlanSpace, Workflow


@dataclass(frozen=True)
class Restored:
    """The results of an interrupted round."""

    kept: tuple[StepResult, ...]
    """Of the steps that stay done."""
    abandoned_calls: tuple[Call, ...]
    """Calls of the steps that have to run again."""
    errors: tuple[str, ...]
    """Why replies were dropped."""


@dataclass(frozen=True)
class Rules:
    """A policy, and the workers it is applied to."""

    policy: Policy
    pool: WorkerPool

    def broken_by(self, workflow: Workflow, space: PlanSpace) -> tuple[str, ...]:
        """Every rule of `space` that `workflow` breaks, and the fields of the policy behind them."""
        violations = space.violations(workflow)
        return (*violations, *self._fields(workflow, space)) if violations else ()

    def against(self, continuation: Continuation, space: PlanSpace) -> str | None:
        """Why a worker may not go on after its tool calls; `None` when it may.

        The message that names it may be forged, so it has to be one that may answer.
        """
        worker = continuation.worker
        if worker not in space.last_choices:
            return self._why(worker) or f"worker {worker!r} may not give the answer"
        for source in sorted(continuation.sources or ()):
            if why := self._why(source):
                return f"its prompt holds a reply of another worker: {why}"
            if not space.may_read(worker, source):
                return f"its prompt holds a reply of {source!r}: policy.forbid keeps that from {worker!r}"
        return None

    def _why(self, worker: str) -> str:
        if worker not in self.pool:
            return f"the pool has no worker {worker!r}"
        why = self.policy.forbidden_because(self.pool[worker].card)
        return f"worker {worker!r}: {why}" if why else ""

    def _fields(self, workflow: Workflow, space: PlanSpace) -> Iterator[str]:
        workers = dict.fromkeys(step.worker for step in workflow.steps)
        yield from (why for worker in workers if worker in self.pool and (why := self._why(worker)))
        if any(
            not space.may_read(reader, source) for reader in workers for source in (*workers, *(space.recalled or ()))
        ):
            yield "policy.forbid keeps replies of some workers from others"


def restored(workflow: Workflow, results: Sequence[StepResult], space: PlanSpace, rules: Rules) -> Restored:
    """Which `results` stay, beside the steps of `workflow` that still have to run; it may run in `space` itself."""
    steps, kept, dropped, errors = list(workflow.steps), [], set[int](), []
    for result in sorted(results, key=lambda one: one.index):
        if result.status != "ok":
            continue
        planned = workflow.steps[result.index] if result.index < len(steps) else None
        if planned != result.step.model_copy(update={"worker": planned.worker if planned else ""}):
            errors.append(f"the reply of step {result.index + 1} is dropped: it belongs to another plan")
            dropped.add(result.index)
            continue
        steps[result.index] = result.step
        broken = rules.broken_by(Workflow(steps=tuple(steps)), space)
        stale = sorted(dropped & result.step.access)
        if broken or stale:
            steps[result.index] = planned
            dropped.add(result.index)
            why = "; ".join(broken) or f"it was made from the reply of step {stale[0] + 1}"
            errors.append(f"step {result.index + 1} runs again, and its earlier reply is dropped: {why}")
        else:
            kept.append(result)
    again = (result for result in results if result not in kept)
    return Restored(tuple(kept), tuple(call for result in again for call in result.calls), tuple(errors))


def resumable(rounds: Sequence[Round], first: PlanSpace, rules: Rules, planner: Card) -> tuple[list[Round], list[str]]:
    """The rounds that stay, of which the last is to be taken up again, and why those after it are dropped.

    Their calls count as calls of the last one's plan, for they were made and have to be paid.
    """
    errors = list(_refused(rounds, first, rules, planner))
    if not errors:
        return list(rounds), []
    end = _first_refused(rounds, first, rules, planner)
    last = rounds[end]
    calls = tuple(call for one in rounds[end + 1 :] for call in one.calls)
    plan = last.plan.model_copy(update={"calls": (*last.plan.calls, *calls)})
    return [*rounds[:end], last.model_copy(update={"plan": plan})], errors


def check_history(rounds: Sequence[Round], first: PlanSpace, rules: Rules, planner: Card) -> None:
    """Check the rounds before a new one, which a host keeps itself.

    Raises:
        WorkflowValidationError: the policy does not allow what they hold.
    """
    errors = tuple(_refused((*rounds, Round(plan=PlanRecord(source="planner"))), first, rules, planner))
    if errors:
        raise WorkflowValidationError(*errors)


def check_resumed(workflow: Workflow | None, resume: Sequence[Round]) -> None:
    """Check that a caller's workflow is not another than that of the run to resume.

    Raises:
        ConfigError: it is.
    """
    if workflow is not None and resume and resume[-1].plan.is_made and resume[-1].plan.workflow != workflow:
        raise ConfigError(
            f"workflow=... is not the plan of round {len(resume)} of the run to resume: leave out workflow to go on "
            "with that plan, or leave out resume to run the workflow from its start"
        )


def without_continuation(request: Request) -> Request:
    """The request as workers are shown it: a conductor in the pool would take a continuation for its own."""
    if all(turn.continuation is None for turn in request.messages):
        return request
    turns = tuple(turn.model_copy(update={"continuation": None}) for turn in request.messages)
    return request.model_copy(update={"messages": turns})


def _refused(rounds: Sequence[Round], first: PlanSpace, rules: Rules, planner: Card) -> Iterator[str]:
    """Why rounds before the last may not stay as they are; nothing when they may."""
    end = _first_refused(rounds, first, rules, planner)
    if end + 1 < len(rounds):
        why = _broken(rounds, end, first, rules) or ("policy.forbid keeps its replies from the planner",)
        yield f"what followed round {end + 1} is dropped: {'; '.join(why)}"


def _first_refused(rounds: Sequence[Round], first: PlanSpace, rules: Rules, planner: Card) -> int:
    """The first round whose replies may not lead to another one; else the last."""
    for number in range(len(rounds) - 1):
        if _broken(rounds, number, first, rules):
            return number
        if not may_hear(planner, rounds[: number + 1], rules.pool, rules.policy):
            return number
    return len(rounds) - 1


def _broken(rounds: Sequence[Round], number: int, first: PlanSpace, rules: Rules) -> Iterable[str]:
    """The rules of the policy that a whole round breaks, as it was run; not those of form, nor limits."""
    workflow = rounds[number].workflow
    if workflow is None:
        return ()
    space = later_space(first, rounds[:number], rules.pool, rules.policy) if number else first
    longest = max(len(step.subtask) for step in workflow.steps)
    relaxed = {"access": "positional", "subtask_chars": longest, "max_steps": max(space.max_steps, len(workflow.steps))}
    return rules.broken_by(workflow, space.model_copy(update=relaxed))
