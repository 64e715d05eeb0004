"""One run from the command line: shown while it lasts, printed, summed up, and its exit code."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import typer

from rl_conductor._internal.formatting import cost_in_words, counted, tokens
from rl_conductor._internal.io import writable, writing
from rl_conductor.cli import console, report
from rl_conductor.cli.options import as_options
from rl_conductor.cli.progress import Watcher, watching
from rl_conductor.cli.telemetry import exported
from rl_conductor.conductor import Conductor
from rl_conductor.errors import RunError
from rl_conductor.trace.events import Event, Listener
from rl_conductor.trace.trace import PlanRecord, Trace
from rl_conductor.types import Request
from rl_conductor.workflow.workflow import Workflow

T = TypeVar("T")

NO_ANSWER = 1
INTERRUPTED = 130


@dataclass(frozen=True)
class Output:
    """What is printed and kept of a run."""

    as_json: bool = False
    show_trace: bool = False
    save: Path | None = None


def conduct(conductor: Conductor, request: Request, output: Output, *, workflow: Workflow | None = None) -> None:
    """Run, print the answer as it is made, sum up, and end with the exit code that fits.

    Raises:
        ConductorError: nothing was run.
        typer.Exit: there is no answer, or Ctrl-C.
    """
    path = writable(output.save) if output.save else None
    with exported():
        _conduct(conductor, request, output, workflow, path)


def _conduct(
    conductor: Conductor, request: Request, output: Output, workflow: Workflow | None, path: Path | None
) -> None:
    code = 0
    with watching(conductor.planner.model.name, speak=not output.as_json) as watcher:
        try:
            asyncio.run(_until_heard(conductor, lambda show: _run(conductor, request, workflow, show), watcher))
        except RunError:
            code = NO_ANSWER
        except BrokenPipeError:
            code = NO_ANSWER
            _silence()
        except KeyboardInterrupt:
            code = INTERRUPTED
    if watcher.trace is None:
        raise typer.Exit(code)
    watcher.end_line()
    _print(watcher.trace, output, path)
    _sum_up(watcher.trace, output, code)
    if code:
        raise typer.Exit(code)


def plan(conductor: Conductor, request: Request) -> PlanRecord:
    """A plan that is not run, shown while it is written.

    Raises:
        ConductorError: no plan may be made at all.
        typer.Exit: Ctrl-C.
    """
    with watching(conductor.planner.model.name) as watcher:
        work = _until_heard(conductor, lambda show: conductor.plan(request, on_event=show), watcher)
        try:
            return asyncio.run(work)
        except KeyboardInterrupt:
            pass
    if watcher.trace is not None:
        console.fail(f"stopped; {spent(watcher.trace)}")
    raise typer.Exit(INTERRUPTED)


async def _run(conductor: Conductor, request: Request, workflow: Workflow | None, show: Listener) -> Trace:
    return await conductor.run(request, workflow=workflow, on_event=show, stream=True)


async def _until_heard(conductor: Conductor, work: Callable[[Listener], Coroutine[Any, Any, T]], watcher: Watcher) -> T:
    """The result of `work`, which is cancelled once nobody reads on: an answer that is not heard may cost no more.

    Raises:
        BrokenPipeError: nobody reads on.
    """
    hung_up: list[BrokenPipeError] = []

    def show(event: Event) -> None:
        try:
            watcher(event)
        except BrokenPipeError as gone:
            hung_up.append(gone)
            running.cancel()

    running = asyncio.create_task(work(show))
    try:
        await asyncio.wait([running])
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await conductor.aclose()
    if hung_up:
        raise hung_up[0]
    return running.result()


def _silence() -> None:
    """Keep Python from flushing into a pipe that is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print(trace: Trace, output: Output, path: Path | None) -> None:
    if output.as_json:
        console.write_json(trace.model_dump_json(indent=2))
    if path is not None:
        with writing(path):
            path.write_text(trace.model_dump_json(indent=2) + "\n", encoding="utf-8")


def _sum_up(trace: Trace, output: Output, code: int) -> None:
    error = console.stderr()
    if not output.as_json and (output.show_trace or not _was_refused(trace)):
        error.print()
        error.print(report.story(trace) if output.show_trace else report.summary(trace))
    if output.save:
        console.note(error, f"the trace is in {output.save}: rl-conductor trace show {output.save}")
    if code == INTERRUPTED:
        console.fail(f"stopped; {spent(trace)}")
    elif code:
        console.fail(why_none(trace))


def spent(trace: Trace) -> str:
    """What a run that was cut short had used."""
    used = trace.usage
    if not used.calls:
        return "nothing was spent"
    return f"spent until then: {cost_in_words(used)}, {tokens(used)}, {counted(used.calls, 'call')}"


def why_none(trace: Trace) -> str:
    """Why nobody got an answer, in a sentence."""
    if _was_refused(trace):
        return f"refused before anything was spent: {as_options(next(trace.calls()).error or '')}"
    if trace.completion is not None or trace.error == "cancelled":
        return f"nobody read the answer to its end; {spent(trace)}"
    return f"there is no answer: {as_options(trace.error or '')}; {spent(trace)}"


def _was_refused(trace: Trace) -> bool:
    """Whether limits stopped every call before it was made."""
    outcomes = {call.outcome for call in trace.calls()}
    return outcomes == {"refused"}
