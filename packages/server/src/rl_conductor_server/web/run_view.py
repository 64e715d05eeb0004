"""View models of the run pages, for runs that are over, in progress here, or in progress in another process. Pure."""

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
from rl_conductor_server.web.graph_layout import GraphLayout, critical_steps, horizontal_layout, vertical_layout

State = Literal["waiting", "running", "ok", "failed", "skipped", "reused"]
"""`reused`: a replay took the reply of the original run."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run that is not over."""

    rounds: tuple[Round, ...] = ()
    running: frozenset[tuple[int, int]] = frozenset()
    """Steps in progress, by round and position; available only for runs in this process."""
    partial_plan: str = ""
    partial_answer: str = ""

    @classmethod
    def from_events(cls, events: Iterable[Event]) -> Progress:
        plans: dict[int, PlanRecord] = {}
        results: dict[int, dict[int, StepResult]] = {}
        running: set[tuple[int, int]] = set()
        partial_plan, answer = "", ""
        for event in events:
            match event:
                case PlanDelta(text=text):
                    partial_plan += text
                case PlanRejected():
                    partial_plan = ""
                case WorkflowPlanned(round=round_index, plan=plan):
                    plans[round_index], partial_plan = plan, ""
                case StepStarted(round=round_index, index=index):
                    running.add((round_index, index))
                case StepFinished(round=round_index, result=result):
                    running.discard((round_index, result.index))
                    results.setdefault(round_index, {})[result.index] = result
                case AnswerDelta(text=text):
                    answer += text
        rounds = [Round(plan=plan, results=tuple(results.get(index, {}).values())) for index, plan in plans.items()]
        return cls(tuple(rounds), frozenset(running), partial_plan, answer)


@dataclass(frozen=True)
class StepView:
    """A step that is planned, in progress or finished."""

    round: int
    index: int
    step: Step
    """The step as run, or as planned until it has run."""
    state: State
    result: StepResult | None
    critical: bool

    @property
    def anchor(self) -> str:
        """The id of its element on the page."""
        return f"round-{self.round + 1}-step-{self.index + 1}"

    @property
    def calls(self) -> tuple[Call, ...]:
        return self.result.calls if self.result else ()

    @property
    def usage(self) -> Usage:
        """The usage of all attempts."""
        return total(call.usage for call in self.calls)

    @property
    def replaced_worker(self) -> str | None:
        """The planned worker, if another one ran the step."""
        planned = self.result.planned_worker if self.result else self.step.worker
        return planned if planned != self.step.worker else None


@dataclass(frozen=True)
class RoundView:
    """A plan and the state of its steps."""

    index: int
    plan: PlanRecord
    steps: tuple[StepView, ...]
    layouts: dict[str, GraphLayout]
    """Layouts by CSS class, `wide` or `tall`; empty when there is no workflow."""


@dataclass(frozen=True)
class RunView:
    """A run as its page shows it."""

    row: RunRow
    rounds: tuple[RoundView, ...]
    trace: Trace | None
    progress: Progress

    @classmethod
    def of(cls, row: RunRow, trace: Trace | None, progress: Progress) -> RunView:
        """Builds the view from the trace, or from the progress while there is no trace."""
        rounds = trace.rounds if trace else progress.rounds
        views = tuple(_round_view(index, round_, progress.running) for index, round_ in enumerate(rounds))
        return cls(row, views, trace, progress)

    @property
    def answer(self) -> str:
        """The answer, partial while the run is in progress."""
        return self.trace.text if self.trace else self.progress.partial_answer

    @property
    def seconds(self) -> float:
        """The duration, and length of the timeline; 0 while the run is in progress."""
        return self.trace.seconds if self.trace else self.row.seconds or 0.0

    @property
    def reused_usage(self) -> Usage:
        """The original usage of the replies that a replay reused."""
        steps = [step for round_ in self.rounds for step in round_.steps if step.state == "reused"]
        calls = [call for step in steps for call in step.calls]
        return total(call.completion.usage for call in calls if call.completion)

    @property
    def step_counts(self) -> tuple[int, int]:
        """The number of finished steps, and of planned steps so far."""
        steps = [step for round_ in self.rounds for step in round_.steps]
        return sum(step.result is not None for step in steps), len(steps)


def _round_view(round_index: int, round_: Round, running: frozenset[tuple[int, int]]) -> RoundView:
    workflow = round_.plan.workflow
    results = {result.index: result for result in round_.results}
    if workflow is None:
        return RoundView(round_index, round_.plan, (), {})
    steps = [results[index].step if index in results else step for index, step in enumerate(workflow.steps)]
    executed = Workflow(steps=tuple(steps))
    critical = _critical_steps(executed, results)
    views = tuple(
        StepView(
            round_index,
            index,
            step,
            _state(results.get(index), (round_index, index) in running),
            results.get(index),
            index in critical,
        )
        for index, step in enumerate(steps)
    )
    layouts = {"wide": horizontal_layout(executed, critical), "tall": vertical_layout(executed, critical)}
    return RoundView(round_index, round_.plan, views, layouts)


def _critical_steps(workflow: Workflow, results: dict[int, StepResult]) -> Sequence[int]:
    """Returns the critical path, or nothing until every step has a result."""
    if len(results) < len(workflow.steps):
        return ()
    return critical_steps(workflow, [results[index].seconds for index in range(len(workflow.steps))])


def _state(result: StepResult | None, is_running: bool) -> State:
    if result is None:
        return "running" if is_running else "waiting"
    if result.status == "ok" and not any(call.usage.calls for call in result.calls):
        return "reused"
    return result.status
