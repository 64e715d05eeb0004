"""`RoundContext`: the state that the steps of one round share, and which earlier replies reach which step."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from rl_conductor.calls.context import RunContext
from rl_conductor.execution.guarding import checks_replies
from rl_conductor.planning.later_rounds import replied_workers
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.prompting.request_inputs import select_question
from rl_conductor.trace.trace import PlanRecord, Round, StepResult
from rl_conductor.types import Continuation, Request
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.workflow import Step, Workflow


@dataclass
class Hedges:
    """The number of hedged requests (second calls because a first one is slow) that a run may still make."""

    remaining: int = 0


@dataclass(kw_only=True)
class RoundContext:
    """The input, the settings and the running steps of one round."""

    run: RunContext
    pool: WorkerPool
    space: PlanSpace
    request: Request
    """The caller's request: every worker sees its conversation; its other fields apply to the final step only."""
    continued: Continuation | None = None
    """The continuation whose prompt the request here has in the place of the caller's last user message."""
    number: int = 0
    """The number of the round, from 0."""
    previous_rounds: Sequence[Round] = ()
    """Read by the planner, and by steps with `recall`."""
    hedges: Hedges = field(default_factory=Hedges)
    stream: bool = False
    """Emit the final step's reply as it is generated, if `apply` finds no reason against it."""
    streamed_pieces: list[str] = field(default_factory=list, init=False)
    """The part of the final reply that was emitted, in pieces, because appending to a text copies it."""
    has_streamed_reasoning: bool = field(default=False, init=False)
    """Whether reasoning of the final worker was emitted."""
    workflow: Workflow | None = field(default=None, init=False)
    """The plan, once it is complete."""
    steps: dict[int, Step] = field(default_factory=dict, init=False)
    """The steps that were started, by position, with the workers that run them now."""
    results: dict[int, asyncio.Future[StepResult]] = field(default_factory=dict, init=False)
    """The results of these steps, except for the last step."""
    planned: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when the plan is complete."""

    def apply(self, plan: PlanRecord) -> None:
        """Decides for a plan whether the final reply is streamed.

        It is if it is certain to be the answer: no other round follows, and no guardrail may refuse it.
        """
        is_last_round = self.number + 1 >= self.run.limits.rounds
        self.stream = self.stream and (plan.is_unplanned or is_last_round)
        if self.stream and self.run.all_guardrails:  # text that was sent can't be taken back
            self.stream = not checks_replies(self.run)

    @property
    def streamed_text(self) -> str:
        """The part of the final reply that was emitted."""
        return "".join(self.streamed_pieces)

    @cached_property
    def question(self) -> str:
        """The text of the last user message."""
        return select_question(self.request.messages, None)

    async def replies(self, access: Collection[int]) -> list[StepResult]:
        """Waits for the steps in `access` and returns their results."""
        if not access:
            return []
        futures = [self.results[i] for i in sorted(access)]
        waiting = [future for future in futures if not future.done()]
        if waiting:  # not `await future`: a task that swallows our cancellation must not keep us from ending
            finished, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
            for future in finished:
                future.result()  # raises only on a bug, and then there is no point in waiting for the others
        return [future.result() for future in futures]

    def sources(self, index: int) -> frozenset[str]:
        """Returns the workers with replies that may have reached this step, directly or indirectly.

        Those of earlier rounds may have, because the planner may quote them in any subtask.
        """
        workflow = self._as_run()
        readable = frozenset(workflow.steps[i].worker for i in workflow.sources[index])
        return readable | replied_workers(self.previous_rounds)

    async def permits(self, index: int, step: Step) -> bool:
        """Returns whether the policy allows `step` at `index`, given the workers that run the other steps now."""
        await self.planned.wait()
        return not self.space.violations(self._as_run({index: step}))

    def _as_run(self, replaced: dict[int, Step] | None = None) -> Workflow:
        assert self.workflow is not None
        steps = {**dict(enumerate(self.workflow.steps)), **self.steps, **(replaced or {})}
        return Workflow(steps=tuple(steps[i] for i in range(len(self.workflow.steps))))
