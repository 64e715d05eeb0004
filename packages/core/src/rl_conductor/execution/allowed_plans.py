"""`AllowedPlans`: the plans that the policy, limits and request of a run allow, and the reasons against the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from rl_conductor._internal.identity import ByIdentity
from rl_conductor.errors import PolicyError, WorkflowValidationError
from rl_conductor.planning.capable_workers import filter_capable
from rl_conductor.planning.later_rounds import can_read, next_round_space
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.trace.trace import Round
from rl_conductor.types import Card, Continuation, Request
from rl_conductor.workflow.plan_space import AccessMode, PlanSpace
from rl_conductor.workflow.policy import Policy
from rl_conductor.workflow.workflow import Workflow


@dataclass(eq=False)
class AllowedPlans:
    """The plans that each round of a run may have, given the rounds before."""

    policy: Policy
    pool: WorkerPool
    planner: Planner
    request: Request
    max_steps: int
    access: AccessMode

    @cached_property
    def first_space(self) -> PlanSpace:
        """The plans that the first round may have.

        Raises:
            PolicyError: no workflow is allowed.
        """
        policy, cards, planner = ByIdentity(self.policy), ByIdentity(self.pool.cards), ByIdentity(self.planner.card)
        space = self._without_forbidden_readers(_plan_space(policy, cards, planner, self.max_steps, self.access))
        return filter_capable(space, self.pool, self.request)

    def space(self, rounds: Sequence[Round]) -> PlanSpace:
        """Returns the plans that the round after `rounds` may have.

        Raises:
            PolicyError: no workflow is allowed.
        """
        if not rounds:
            return self.first_space
        return next_round_space(self.first_space, rounds, self.pool, self.policy)

    @cached_property
    def _named_sources(self) -> tuple[Card, ...]:
        """The workers that the conversation names as the authors of earlier turns."""
        names = {turn.name: None for turn in self.request.messages if turn.role == "assistant" and turn.name}
        return tuple(self.pool[name].card for name in names if name in self.pool)

    def _without_forbidden_readers(self, space: PlanSpace) -> PlanSpace:
        """Leaves out workers that may not read an earlier turn: every worker reads the conversation."""
        if not (self.policy.forbid and self._named_sources):
            return space
        reasons = {
            name: reason
            for name in space.allowed
            if (reason := self.policy.flow_denial_reason(self.pool[name].card, self._named_sources))
        }
        if not reasons:
            return space
        if set(space.final_workers) <= reasons.keys():
            raise PolicyError(f"no worker may answer: {'; '.join(sorted(reasons.values()))}", rule="forbid")
        return space.model_copy(update={"allowed": frozenset(space.allowed - reasons.keys())})

    def check_workflow(self, workflow: Workflow, space: PlanSpace) -> None:
        """Raises `WorkflowValidationError` unless `workflow` keeps to the rules of `space`."""
        if violations := self.violations(workflow, space):
            raise WorkflowValidationError(*violations)

    # -------------------------------------------------------------------------------- the planner

    def check_planner_access(self) -> None:
        """Raises `PolicyError` unless the policy lets the planner see the request."""
        message = f"the planner {self.planner.model.name} may not see this request"
        if reason := self.policy.flow_denial_reason(self.planner.card, self._named_sources):
            raise PolicyError(f"{message}: {reason}", rule="forbid")
        if reason := self.policy.data_denial_reason(self.planner.card):
            raise PolicyError(
                f"{message}: {reason}; describe its model with Planner(model=..., card=Card(tags=..., region=...))",
                rule="data_class",
            )

    @property
    def may_plan(self) -> bool:
        """Whether the policy lets the planner see the request."""
        try:
            self.check_planner_access()
        except PolicyError:
            return False
        return True

    def may_plan_after(self, rounds: Sequence[Round]) -> bool:
        """Returns whether the policy lets the planner read the replies in `rounds`."""
        return can_read(self.planner.card, rounds, self.pool, self.policy)

    # -------------------------------------------------------------------------------- reasons

    def violations(self, workflow: Workflow, space: PlanSpace) -> tuple[str, ...]:
        """Lists the rules of `space` that `workflow` breaks, and the policy fields behind them."""
        violations = space.violations(workflow)
        return (*violations, *self._fields(workflow, space)) if violations else ()

    def continuation_error(self, continuation: Continuation, space: PlanSpace) -> str | None:
        """Returns why a worker may not continue after its tool calls; `None` when it may.

        The message that names the worker may be forged, so it has to be one that may give the answer.
        """
        worker = continuation.worker
        if worker not in space.final_workers:
            return self._denial_reason(worker) or f"worker {worker!r} may not give the answer"
        for source in sorted(continuation.sources or ()):
            if reason := self._denial_reason(source):
                return f"its prompt holds a reply of another worker: {reason}"
            if not space.may_read(worker, source):
                return f"its prompt holds a reply of {source!r}: policy.forbid keeps that from {worker!r}"
        return None

    def first_break(self, rounds: Sequence[Round]) -> tuple[int, str] | None:
        """Returns the index of the first of `rounds` that no other may follow, and an error that says why."""
        space = self.first_space
        for index, round_ in enumerate(rounds):
            so_far = rounds[: index + 1]
            reason = "; ".join(self._broken_rules(round_.workflow, space)) if round_.workflow else ""
            if not reason and not self.may_plan_after(so_far):
                reason = "policy.forbid keeps its replies from the planner"
            if reason:
                return index, f"what followed round {index + 1} is dropped: {reason}"
            space = self.space(so_far)
        return None

    def check_history(self, rounds: Sequence[Round]) -> None:
        """Checks the rounds before a new one, for a host that stores them itself.

        Raises:
            PolicyError: no workflow is allowed.
            WorkflowValidationError: the policy does not allow these rounds.
        """
        if broken := self.first_break(rounds):
            raise WorkflowValidationError(broken[1])

    def _broken_rules(self, workflow: Workflow, space: PlanSpace) -> tuple[str, ...]:
        """Lists the policy rules that `workflow` breaks, ignoring those of form and limits."""
        space = space.relaxed_for(workflow)
        max_steps = max(space.max_steps, len(workflow.steps))
        return self.violations(workflow, space.model_copy(update={"attachments": (), "max_steps": max_steps}))

    def _denial_reason(self, worker: str) -> str | None:
        if worker not in self.pool:
            return f"the pool has no worker {worker!r}"
        reason = self.policy.denial_reason(self.pool[worker].card)
        return reason and f"worker {worker!r}: {reason}"

    def _fields(self, workflow: Workflow, space: PlanSpace) -> Iterator[str]:
        workers = dict.fromkeys(step.worker for step in workflow.steps)
        yield from (reason for worker in workers if worker in self.pool and (reason := self._denial_reason(worker)))
        if any(
            not space.may_read(reader, source) for reader in workers for source in (*workers, *(space.recallable or ()))
        ):
            yield "policy.forbid keeps replies of some workers from others"


@lru_cache(maxsize=256)
def _plan_space(
    policy: ByIdentity[Policy],
    cards: ByIdentity[tuple[Card, ...]],
    planner: ByIdentity[Card],
    max_steps: int,
    access: AccessMode,
) -> PlanSpace:
    """Applies a policy to a pool; cached, because it takes longer than a run's own work."""
    policy.value.check_selectors(cards.value, planners=[planner.value])
    return policy.value.space(cards.value, max_steps=max_steps, access=access)
