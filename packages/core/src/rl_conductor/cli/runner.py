"""Runs a request for the command line: progress, answer, summary and exit code."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import typer

from rl_conductor._internal.formatting import cost_in_words, counted, tokens
from rl_conductor._internal.io import check_writable, write_text
from rl_conductor.cli import exit_codes, streams
from rl_conductor.cli.options import with_option_names
from rl_conductor.cli.output import console, report
from rl_conductor.cli.output.progress import Watcher, watch_run
from rl_conductor.cli.telemetry import export_telemetry
from rl_conductor.conductor import Conductor
from rl_conductor.errors import RunError
from rl_conductor.trace.events import Event, Listener
from rl_conductor.trace.trace import PlanRecord, Trace
from rl_conductor.types import Request
from rl_conductor.workflow.workflow import Workflow

T = TypeVar("T")


@dataclass(frozen=True)
class OutputOptions:
    """Options for printing and saving a run."""

    as_json: bool = False
    quiet: bool = False
    """Print no progress and no summary."""
    show_trace: bool = False
    save: Path | None = None


def run_and_print(
    conductor: Conductor, request: Request, output: OutputOptions, *, workflow: Workflow | None = None
) -> None:
    """Runs a request, streams the answer, prints a summary, and exits with the matching code.

    Raises:
        ConductorError: nothing was run.
        typer.Exit: there is no answer, or Ctrl-C or SIGTERM.
    """
    path = check_writable(output.save) if output.save else None
    with export_telemetry():
        _conduct(conductor, request, output, workflow, path)


def _conduct(
    conductor: Conductor, request: Request, output: OutputOptions, workflow: Workflow | None, path: Path | None
) -> None:
    code = 0
    output_error: OSError | None = None
    planner = conductor.planner.model.name

    def run(show: Listener) -> Coroutine[Any, Any, Trace]:
        # The format of a reply that was printed in part can't be checked any more.
        stream = not output.as_json and request.response_format is None
        return conductor.run(request, workflow=workflow, on_event=show, stream=stream)

    with (
        watch_run(planner, print_answer=not output.as_json, quiet=output.quiet) as watcher,
        terminate_as_interrupt() as was_terminated,
    ):
        try:
            asyncio.run(_run_until_closed(conductor, run, watcher))
        except RunError:
            code = exit_codes.FAILURE
        except streams.OUTPUT_ERRORS as error:
            code, output_error = exit_codes.FAILURE, error
            streams.discard_stdout()
        except KeyboardInterrupt:
            code = exit_codes.TERMINATED if was_terminated() else exit_codes.INTERRUPTED
    if watcher.trace is None:
        raise typer.Exit(code)
    watcher.end_line()
    _print(watcher.trace, output, path)
    _print_summary(watcher.trace, output, code, output_error)
    if code:
        raise typer.Exit(code)


@contextmanager
def terminate_as_interrupt() -> Iterator[Callable[[], bool]]:
    """Handles SIGTERM like Ctrl-C, so that a run still reports its spending; yields whether the signal came."""
    received: list[int] = []

    def interrupt(number: int, _: FrameType | None) -> None:
        received.append(number)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell script
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield lambda: bool(received)
    finally:
        signal.signal(signal.SIGTERM, previous)


def make_plan(conductor: Conductor, request: Request) -> PlanRecord:
    """Plans a request without running it, and shows the progress.

    Raises:
        ConductorError: the request can't be planned.
        typer.Exit: Ctrl-C or SIGTERM.
    """
    with watch_run(conductor.planner.model.name) as watcher, terminate_as_interrupt() as was_terminated:
        work = _run_until_closed(conductor, lambda show: conductor.plan(request, on_event=show), watcher)
        try:
            return asyncio.run(work)
        except KeyboardInterrupt:
            pass
    if watcher.trace is not None:
        console.fail(f"interrupted; {usage_summary(watcher.trace)}")
    raise typer.Exit(exit_codes.TERMINATED if was_terminated() else exit_codes.INTERRUPTED)


async def _run_until_closed(
    conductor: Conductor, work: Callable[[Listener], Coroutine[Any, Any, T]], watcher: Watcher
) -> T:
    """Awaits `work`; cancels it when the output fails, because nobody can read the answer any more.

    Raises:
        BrokenPipeError: stdout was closed.
        OutputError: stdout can't be written, such as on a full disk.
    """
    output_errors: list[OSError] = []

    def show(event: Event) -> None:
        try:
            watcher(event)
        except streams.OUTPUT_ERRORS as error:
            output_errors.append(error)
            running.cancel()

    running = asyncio.create_task(work(show))
    try:
        await asyncio.wait([running])
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await conductor.aclose()
    if output_errors:
        raise output_errors[0]
    return running.result()


def _print(trace: Trace, output: OutputOptions, path: Path | None) -> None:
    if path is not None:
        write_text(path, trace.model_dump_json(indent=2) + "\n")
    if output.as_json:
        console.write_json(trace_json(trace))


def trace_json(trace: Trace) -> str:
    """Serialises a trace, preceded by the answer's text and the usage of the whole run, for `jq .text`."""
    content = {"text": trace.text, "usage": trace.usage.model_dump(mode="json"), **trace.model_dump(mode="json")}
    return json.dumps(content, indent=2, ensure_ascii=False)


def _print_summary(trace: Trace, output: OutputOptions, code: int, output_error: OSError | None) -> None:
    error = console.stderr()
    wants_summary = not output.quiet and not _was_refused(trace)
    if not output.as_json and (output.show_trace or wants_summary):
        error.print()
        error.print(report.full_report(trace) if output.show_trace else report.summary(trace))
    if output.save and not output.quiet:
        console.note(error, f"the trace is in {output.save}: rl-conductor trace show {output.save}")
    if code in (exit_codes.INTERRUPTED, exit_codes.TERMINATED):
        console.fail(f"interrupted; {usage_summary(trace)}")
    elif output_error is not None:
        console.fail(f"{streams.describe_output_error(output_error)}; {usage_summary(trace)}")
    elif code:
        console.fail(failure_reason(trace))


def usage_summary(trace: Trace) -> str:
    """Describes the usage of an interrupted run."""
    used = trace.usage
    if not used.calls or (not used.total_tokens and not used.cost and not used.unpriced_calls):
        return "nothing was spent"
    return f"spent so far: {cost_in_words(used)}, {tokens(used)}, {counted(used.calls, 'call')}"


def failure_reason(trace: Trace) -> str:
    """Explains in one sentence why there is no answer."""
    if _was_refused(trace):
        return f"refused before anything was spent: {with_option_names(trace.calls[0].error or '')}"
    return f"there is no answer: {with_option_names(report.failure(trace))}; {usage_summary(trace)}"


def _was_refused(trace: Trace) -> bool:
    """Returns whether limits stopped every call before it was made."""
    outcomes = {call.outcome for call in trace.calls}
    return outcomes == {"refused"}
