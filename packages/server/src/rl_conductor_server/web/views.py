"""What the pages show of a run, whether it is over, goes on in this process, or in another one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rl_conductor.trace.events import (
    AnswerDelta,
    Event,
    PlanDelta,
    PlanRejected,
    StepFinished,
    StepStarted,
    WorkflowPlanned,
)
from rl_conductor.trace.trace import Call, PlanRecord, Round, StepResult, Trace
from rl_conductor.types import Usage, total
from rl_conductor.workflow.workflow import Step, Workflow
from rl_conductor_server.store import RunRow
from rl_conductor_server.web.drawing import Drawing, critical_chain, tall, wide

State = Literal["waiting", "running", "ok", "failed", "skipped", "kept"]


@dataclass(frozen=True)
class Progress:
    """How far a run is that is not over."""

    rounds: tuple[Round, ...] = ()
    running: frozenset[tuple[int, int]] = frozenset()
    """Steps that a worker is at, by round and position; known only of runs in this process."""
    writing: str = ""
    """The plan that is being written."""
    answer: str = ""
    """As far as it is written."""

    @classmethod
    def of(cls, events: Iterable[Event]) -> Progress:
        """What these events amount to."""
        plans: dict[int, PlanRecord] = {}
        results: dict[int, dict[int, StepResult]] = {}
        running: set[tuple[int, int]] = set()
        writing, answer = "", ""
        for event in events:
            match event:
                case PlanDelta(text=text):
                    writing += text
                case PlanRejected():
                    writing = ""
                case WorkflowPlanned(round=number, plan=plan):
                    plans[number], writing = plan, ""
                case StepStarted(round=number, index=index):
                    running.add((number, index))
                case StepFinished(round=number, result=result):
                    running.discard((number, result.index))
                    results.setdefault(number, {})[result.index] = result
                case AnswerDelta(text=text):
                    answer += text
        rounds = [Round(plan=plan, results=tuple(results.get(number, {}).values())) for number, plan in plans.items()]
        return cls(tuple(rounds), frozenset(running), writing, answer)


@dataclass(frozen=True)
class StepView:
    """A step, planned, under way or done."""

    round: int
    index: int
    step: Step
    """As run, or as planned until then."""
    state: State
    result: StepResult | None
    critical: bool

    @property
    def anchor(self) -> str:
        """Its place on the page."""
        return f"round-{self.round + 1}-step-{self.index + 1}"

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every attempt."""
        return self.result.calls if self.result else ()

    @property
    def usage(self) -> Usage:
        """Of all attempts."""
        return total(call.usage for call in self.calls)

    @property
    def replaced(self) -> str | None:
        """The worker that it was planned for, if another one did it."""
        planned = self.result.planned_worker if self.result else self.step.worker
        return planned if planned != self.step.worker else None


@dataclass(frozen=True)
class RoundView:
    """A plan and what became of it."""

    number: int
    plan: PlanRecord
    steps: tuple[StepView, ...]
    drawings: dict[str, Drawing]
    """By the width of screen that each is for; none when there is nothing to draw."""

    @property
    def planning(self) -> Usage:
        """What writing the plan used."""
        return total(call.usage for call in self.plan.calls)


@dataclass(frozen=True)
class RunView:
    """Everything that its page shows."""

    row: RunRow
    rounds: tuple[RoundView, ...]
    trace: Trace | None
    progress: Progress

    @classmethod
    def of(cls, row: RunRow, trace: Trace | None, progress: Progress) -> RunView:
        """A run from its trace, once there is one, else from how far it is."""
        rounds = trace.rounds if trace else progress.rounds
        views = tuple(_round_view(number, one, progress.running) for number, one in enumerate(rounds))
        return cls(row, views, trace, progress)

    @property
    def answer(self) -> str:
        """The answer, or what there is of it."""
        return self.trace.text if self.trace else self.progress.answer

    @property
    def seconds(self) -> float:
        """How long it took; the length of its time line."""
        return self.trace.seconds if self.trace else self.row.seconds or 0.0

    @property
    def kept_usage(self) -> Usage:
        """What the replies that a replay kept had used when they were first made."""
        calls = [call for one in self.rounds for step in one.steps if step.state == "kept" for call in step.calls]
        return total(call.completion.usage for call in calls if call.completion)

    @property
    def done(self) -> tuple[int, int]:
        """How many steps are done, and how many are planned so far."""
        steps = [step for one in self.rounds for step in one.steps]
        return sum(step.result is not None for step in steps), len(steps)


def _round_view(number: int, one: Round, running: frozenset[tuple[int, int]]) -> RoundView:
    workflow = one.plan.workflow
    results = {result.index: result for result in one.results}
    if workflow is None:
        return RoundView(number, one.plan, (), {})
    steps = [results[index].step if index in results else step for index, step in enumerate(workflow.steps)]
    run = Workflow(steps=tuple(steps))
    chain = _chain(run, results)
    views = tuple(
        StepView(
            number,
            index,
            step,
            _state(results.get(index), (number, index) in running),
            results.get(index),
            index in chain,
        )
        for index, step in enumerate(steps)
    )
    return RoundView(number, one.plan, views, {"wide": wide(run, chain), "tall": tall(run, chain)})


def _chain(workflow: Workflow, results: dict[int, StepResult]) -> Sequence[int]:
    """The critical path, once it is known."""
    if len(results) < len(workflow.steps):
        return ()
    return critical_chain(workflow, [results[index].seconds for index in range(len(workflow.steps))])


def _state(result: StepResult | None, running: bool) -> State:
    if result is None:
        return "running" if running else "waiting"
    if result.status == "ok" and not any(call.usage.calls for call in result.calls):
        return "kept"
    return result.status
