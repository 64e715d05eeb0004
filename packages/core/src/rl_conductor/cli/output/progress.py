"""Shows the progress of a run: a live display in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.live import Live
from rich.text import Text

from rl_conductor._internal.formatting import cost, counted, seconds, tokens
from rl_conductor.cli.options import with_option_names
from rl_conductor.cli.output import console
from rl_conductor.cli.output.console import clean, one_line
from rl_conductor.cli.output.diagram import StepRow, table
from rl_conductor.cli.output.report import UNREACHABLE, plan_heading, plan_origin, step_row, waiting_row
from rl_conductor.trace.events import (
    AnswerDelta,
    Event,
    Finished,
    PlanDelta,
    PlanRejected,
    PlanStarted,
    ReasoningDelta,
    StepFinished,
    StepStarted,
    WorkflowPlanned,
)
from rl_conductor.trace.trace import PlanRecord, StepResult, Trace

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
FRAMES_A_SECOND = 10
RIGHT_MARGIN = 3
"""Columns left free at the right, for the `^C` that terminals print at the end of the display."""


class Display(Protocol):
    """Displays the events of a run."""

    def show(self, event: Event) -> None:
        """Handles an event of the run."""

    def stop(self) -> None:
        """Stops the live display, so that others can write to the terminal."""


@dataclass
class Watcher:
    """Passes events on to the display and the answer's text to stdout, and keeps the trace."""

    display: Display
    print_answer: bool = True
    """Whether the answer is streamed to stdout."""
    trace: Trace | None = None
    """The trace, once the run has ended or was cancelled."""
    _last_character: str = ""

    def __call__(self, event: Event) -> None:
        """Handles an event of the run."""
        if isinstance(event, Finished):
            self.trace = event.trace
        if isinstance(event, AnswerDelta) and self.print_answer:
            self._write(event.text)
        else:
            self.end_line()
            self.display.show(event)

    def end_line(self) -> None:
        """Ends the last line of the answer."""
        if self._last_character and self._last_character != "\n":
            self._write("\n")

    def _write(self, text: str) -> None:
        if sys.stdout.isatty():
            self.display.stop()
        text = clean(text)
        sys.stdout.write(text)
        sys.stdout.flush()
        self._last_character = text[-1:] or self._last_character


@contextmanager
def watch_run(planner: str, *, print_answer: bool = True, quiet: bool = False) -> Iterator[Watcher]:
    """Creates the watcher of one run, with a live display if the terminal supports it; with `quiet` with none."""
    error = console.stderr()
    if quiet:
        yield Watcher(NoDisplay(), print_answer=print_answer)
    elif error.is_terminal and not error.is_dumb_terminal:
        board = Board(planner)
        with Live(
            board,
            console=error,
            transient=True,
            refresh_per_second=FRAMES_A_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        ) as live:
            board.live = live
            yield Watcher(board, print_answer=print_answer)
    else:
        yield Watcher(Lines(error, planner), print_answer=print_answer)


class NoDisplay:
    """The display of a quiet run, which shows nothing."""

    def show(self, event: Event) -> None:
        """Shows nothing of the event."""

    def stop(self) -> None:
        """Has no display to end."""


# ----------------------------------------------------------------------------------- in a terminal


@dataclass
class _Attempt:
    """A running attempt at a step."""

    worker: str
    number: int
    since: float


@dataclass
class _RoundView:
    """The state of one round, collected from events."""

    since: float
    characters: int = 0
    failed_plans: int = 0
    plan: PlanRecord | None = None
    attempts: dict[int, _Attempt] = field(default_factory=dict)
    results: dict[int, StepResult] = field(default_factory=dict)


class Board:
    """Live display of the rounds so far."""

    def __init__(self, planner: str) -> None:
        self.live: Live | None = None
        self._planner = planner
        self._rounds: dict[int, _RoundView] = {}

    def show(self, event: Event) -> None:
        """Records the event for the next frame; the beginning of a phase is drawn at once."""
        if isinstance(event, Finished | ReasoningDelta | AnswerDelta):
            return
        view = self._rounds.setdefault(event.round, _RoundView(since=time.monotonic()))
        match event:
            case PlanStarted():
                view.since = time.monotonic()
            case PlanDelta():
                view.characters += len(event.text)
            case PlanRejected():
                view.failed_plans, view.characters = view.failed_plans + 1, 0
            case WorkflowPlanned():
                view.plan = event.plan
            case StepStarted():
                view.attempts[event.index] = _Attempt(event.worker, event.attempt, time.monotonic())
            case StepFinished():
                view.results[event.result.index] = event.result
        if self.live is not None and isinstance(event, PlanStarted | WorkflowPlanned):
            self.live.refresh()  # so that a phase shorter than a frame is shown, too

    def stop(self) -> None:
        """Clears the display, so that the answer takes its place."""
        if self.live is not None:
            self.live.stop()

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        yield Constrain(Group(*self._parts()), options.max_width - RIGHT_MARGIN)

    def _parts(self) -> Iterator[RenderableType]:
        now = time.monotonic()
        for number, view in sorted(self._rounds.items()):
            round_number = number + 1 if len(self._rounds) > 1 else None
            if view.plan is None:
                yield self._planning(round_number, view, now)
            else:
                yield plan_heading(round_number, self._planner, view.plan)
            if view.plan is not None and view.plan.workflow is not None:
                steps = enumerate(view.plan.workflow.steps)
                yield table(view.plan.workflow, [_row(view, index, waiting_row(step), now) for index, step in steps])

    def _planning(self, number: int | None, view: _RoundView, now: float) -> Text:
        parts = [f"planning with {one_line(self._planner)}", seconds(now - view.since)]
        if view.characters:
            parts.append(f"{view.characters:,} characters")
        if view.failed_plans:
            parts.append(f"after {counted(view.failed_plans, 'failed attempt')}")
        return Text.assemble((f"{_frame(now)} ", "cyan"), f"round {number}: " if number else "", " · ".join(parts))


def _row(view: _RoundView, index: int, waiting: StepRow, now: float) -> StepRow:
    if index in view.results:
        return step_row(view.results[index])
    attempt = view.attempts.get(index)
    if attempt is None:
        return waiting
    worker = attempt.worker if attempt.number == 1 else f"{attempt.worker} (attempt {attempt.number})"
    return StepRow(_frame(now), "cyan", worker, waiting.subtask, seconds=seconds(now - attempt.since))


def _frame(now: float) -> str:
    return FRAMES[int(now * FRAMES_A_SECOND) % len(FRAMES)]


# ----------------------------------------------------------------------------------- anywhere else


@dataclass
class Lines:
    """Prints one line per event, for logs and pipes."""

    console: Console
    planner: str

    def show(self, event: Event) -> None:
        """Prints the lines of an event, if any."""
        for line in self._lines(event):
            self.console.print(Text(line), soft_wrap=True)

    def stop(self) -> None:
        """Does nothing; there is no live display."""

    def _lines(self, event: Event) -> Iterator[str]:
        match event:
            case PlanStarted():
                yield f"planning with {self.planner}"
            case WorkflowPlanned():
                yield from _plan_lines(event.plan)
            case StepStarted():
                attempt = f", attempt {event.attempt}" if event.attempt > 1 else ""
                yield f"step {event.index + 1}: {event.worker} starts{attempt}"
            case StepFinished():
                yield _result_line(event.result)


def _plan_lines(plan: PlanRecord) -> Iterator[str]:
    if plan.workflow is None:
        yield plan_origin(plan)
        return
    failures = (
        f", after {counted(len(plan.errors), 'failed attempt')}" if plan.source == "planner" and plan.errors else ""
    )
    if plan.planning_reason:
        yield f"reason: {plan.planning_reason}"
    yield f"{plan_origin(plan)}: {counted(len(plan.workflow.steps), 'step')}{failures}"
    for number, step in enumerate(plan.workflow.steps, 1):
        reads = ", ".join(str(source + 1) for source in sorted(step.access))
        notes = [f"reads {reads}"] if reads else []
        notes += [] if step.inputs is None else [f"sees {', '.join(sorted(step.inputs)) or 'no inputs'}"]
        yield f"  {number}. {step.worker}: {one_line(step.subtask)}" + (f" ({'; '.join(notes)})" if notes else "")


def _result_line(result: StepResult) -> str:
    status = {"ok": "done", "failed": "failed", "skipped": "skipped"}[result.status]
    line = f"step {result.index + 1}: {result.step.worker} {status}"
    if result.calls:
        line += f" in {seconds(result.seconds)}, {tokens(result.usage)}, {cost(result.usage)}"
    is_unreachable = all(UNREACHABLE.fullmatch(call.error or "") for call in result.calls)
    if result.error and result.status == "failed" and not (result.calls and is_unreachable):  # the summary names it
        return f"{line}: {with_option_names(one_line(result.error))}"
    return line
