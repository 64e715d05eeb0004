"""Shows a run while it lasts: a picture that changes in a terminal, plain lines anywhere else."""

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
from rl_conductor.cli import console
from rl_conductor.cli.console import clean, one_line
from rl_conductor.cli.graph import StepRow, table
from rl_conductor.cli.report import SOURCES, heading, row_of, waiting_row
from rl_conductor.trace.events import (
    AnswerDelta,
    Event,
    Finished,
    PlanDelta,
    PlanRejected,
    PlanStarted,
    StepFinished,
    StepStarted,
    WorkflowPlanned,
)
from rl_conductor.trace.trace import PlanRecord, StepResult, Trace
from rl_conductor.types import total

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
FRAMES_A_SECOND = 10
ROOM = 3
"""Columns left free at the right, for the `^C` that a terminal writes where the picture ends."""


class Display(Protocol):
    """Told of every event of a run."""

    def show(self, event: Event) -> None:
        """Show one event."""

    def stop(self) -> None:
        """Leave the terminal to others."""


@dataclass
class Watcher:
    """Passes events on to the display and the answer's text to stdout, and keeps the trace."""

    display: Display
    speak: bool = True
    """Whether the answer is written to stdout as it is made."""
    trace: Trace | None = None
    """What happened, once the run is over, also when it was cancelled."""
    _ended: str = ""

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, Finished):
            self.trace = event.trace
        if isinstance(event, AnswerDelta) and self.speak:
            self._say(event.text)
        else:
            self.end_line()
            self.display.show(event)

    def end_line(self) -> None:
        """Finish the answer's last line."""
        if self._ended and self._ended != "\n":
            self._say("\n")

    def _say(self, text: str) -> None:
        if sys.stdout.isatty():
            self.display.stop()
        text = clean(text)
        sys.stdout.write(text)
        sys.stdout.flush()
        self._ended = text[-1:] or self._ended


@contextmanager
def watching(planner: str, *, speak: bool = True) -> Iterator[Watcher]:
    """A watcher of one run, as the terminal allows."""
    error = console.stderr()
    if error.is_terminal and not error.is_dumb_terminal:
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
            yield Watcher(board, speak=speak)
    else:
        yield Watcher(Lines(error, planner), speak=speak)


# ----------------------------------------------------------------------------------- in a terminal


@dataclass
class _Attempt:
    """A step at which a worker is busy."""

    worker: str
    number: int
    since: float


@dataclass
class _RoundView:
    """One round as far as it is known."""

    since: float
    written: int = 0
    rejected: int = 0
    plan: PlanRecord | None = None
    attempts: dict[int, _Attempt] = field(default_factory=dict)
    results: dict[int, StepResult] = field(default_factory=dict)


class Board:
    """The rounds so far, drawn anew several times a second."""

    def __init__(self, planner: str) -> None:
        self.live: Live | None = None
        self._planner = planner
        self._rounds: dict[int, _RoundView] = {}

    def show(self, event: Event) -> None:
        """Note what happened; the next frame shows it."""
        if isinstance(event, Finished | AnswerDelta):
            return
        view = self._rounds.setdefault(event.round, _RoundView(since=time.monotonic()))
        match event:
            case PlanStarted():
                view.since = time.monotonic()
            case PlanDelta():
                view.written += len(event.text)
            case PlanRejected():
                view.rejected, view.written = view.rejected + 1, 0
            case WorkflowPlanned():
                view.plan = event.plan
            case StepStarted():
                view.attempts[event.index] = _Attempt(event.worker, event.attempt, time.monotonic())
            case StepFinished():
                view.results[event.result.index] = event.result

    def stop(self) -> None:
        """Clear the picture, so that the answer stands where it was."""
        if self.live is not None:
            self.live.stop()

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        yield Constrain(Group(*self._parts()), options.max_width - ROOM)

    def _parts(self) -> Iterator[RenderableType]:
        now = time.monotonic()
        for number, view in sorted(self._rounds.items()):
            shown = number + 1 if len(self._rounds) > 1 else None
            if view.plan is None:
                yield self._planning(shown, view, now)
            else:
                yield heading(shown, self._planner, view.plan)
            if view.plan is not None and view.plan.workflow is not None:
                steps = enumerate(view.plan.workflow.steps)
                yield table(view.plan.workflow, [_row(view, index, waiting_row(step), now) for index, step in steps])

    def _planning(self, number: int | None, view: _RoundView, now: float) -> Text:
        parts = [f"planning with {one_line(self._planner)}", seconds(now - view.since)]
        if view.written:
            parts.append(f"{view.written:,} characters")
        if view.rejected:
            parts.append(f"{counted(view.rejected, 'plan')} rejected")
        return Text.assemble((f"{_frame(now)} ", "cyan"), f"round {number}: " if number else "", " · ".join(parts))


def _row(view: _RoundView, index: int, otherwise: StepRow, now: float) -> StepRow:
    if index in view.results:
        return row_of(view.results[index])
    attempt = view.attempts.get(index)
    if attempt is None:
        return otherwise
    worker = attempt.worker if attempt.number == 1 else f"{attempt.worker} (attempt {attempt.number})"
    return StepRow(_frame(now), "cyan", worker, otherwise.subtask, seconds=seconds(now - attempt.since))


def _frame(now: float) -> str:
    return FRAMES[int(now * FRAMES_A_SECOND) % len(FRAMES)]


# ----------------------------------------------------------------------------------- anywhere else


@dataclass
class Lines:
    """A line for each thing that happens, for logs and pipes."""

    console: Console
    planner: str

    def show(self, event: Event) -> None:
        """Say what happened, if it is worth a line."""
        for line in self._said(event):
            self.console.print(Text(line), soft_wrap=True)

    def stop(self) -> None:
        """Nothing is drawn, so there is nothing to clear."""

    def _said(self, event: Event) -> Iterator[str]:
        match event:
            case PlanStarted():
                yield f"planning with {self.planner}"
            case WorkflowPlanned():
                yield from _plan_lines(event.plan)
            case StepStarted():
                again = f", attempt {event.attempt}" if event.attempt > 1 else ""
                yield f"step {event.index + 1}: {event.worker} begins{again}"
            case StepFinished():
                yield _result_line(event.result)


def _plan_lines(plan: PlanRecord) -> Iterator[str]:
    if plan.workflow is None:
        yield "the answer stands"
        return
    after = f", after {counted(len(plan.errors), 'rejected plan')}" if plan.source == "planner" and plan.errors else ""
    yield f"{SOURCES[plan.source]}: {counted(len(plan.workflow.steps), 'step')}{after}"
    for number, step in enumerate(plan.workflow.steps, 1):
        reads = ", ".join(str(source + 1) for source in sorted(step.access))
        yield f"  {number}. {step.worker}: {one_line(step.subtask)}" + (f" (reads {reads})" if reads else "")


def _result_line(result: StepResult) -> str:
    used = total(call.usage for call in result.calls)
    what = {"ok": "done", "failed": "failed", "skipped": "skipped"}[result.status]
    line = f"step {result.index + 1}: {result.step.worker} {what}"
    if result.calls:
        line += f" in {seconds(result.seconds)}, {tokens(used)}, {cost(used)}"
    return f"{line}: {one_line(result.error)}" if result.error and result.status == "failed" else line
