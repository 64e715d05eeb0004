"""`chat`: a conversation of several turns in the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal

import typer

from rl_conductor._internal.formatting import cost_in_words, counted, tokens
from rl_conductor._internal.io import reading_errors
from rl_conductor.cli import exit_codes, options, runner
from rl_conductor.cli.embedded import prepare_models
from rl_conductor.cli.input.question import system_messages
from rl_conductor.cli.output import console, report
from rl_conductor.cli.output.progress import watch_run
from rl_conductor.cli.telemetry import export_telemetry
from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConductorError, RunError
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Message, Request, Usage
from rl_conductor.workflow.limits import Limits

PROMPT = "> "
NEW = "/new"
HELP = f"An empty line is ignored, {NEW} starts another conversation, Ctrl-C stops an answer, Ctrl-D ends the chat."


@options.with_run_options()
def chat(
    *,
    system: options.System = None,
    quiet: options.Quiet = False,
    run_options: options.RunOptions,
) -> None:
    """Talk with the pool over several turns.

    --usd and --tokens limit the whole chat, --seconds each answer.
    Without a terminal, each line of stdin is a turn, and the exit code is 1 if one of them has no answer.

    \b
    Examples:
      rl-conductor chat
      rl-conductor chat --system "Answer in French." --usd 0.10
    """
    built, discovered = run_options.conductor()
    prepare_models(built, discovered, quiet=quiet)
    opening = system_messages(system)
    with export_telemetry(), asyncio.Runner() as loop, runner.terminate_as_interrupt() as was_terminated:
        conversation = Conversation(built, loop, opening, quiet=quiet, was_terminated=was_terminated)
        try:
            conversation.hold()
        finally:
            loop.run(built.aclose())
    if not quiet:
        console.note(console.stderr(), conversation.total)
    if was_terminated():
        raise typer.Exit(exit_codes.TERMINATED)
    if conversation.unanswered and not sys.stdin.isatty():
        raise typer.Exit(exit_codes.FAILURE)


@dataclass
class Conversation:
    """The turns so far, and their usage."""

    conductor: Conductor
    loop: asyncio.Runner
    """Runs every turn, so that models keep their connections and weights."""
    opening: tuple[Message, ...] = ()
    """The messages that every conversation begins with."""
    quiet: bool = False
    was_terminated: Callable[[], bool] = lambda: False
    """Returns whether SIGTERM came, which ends the chat."""
    usage: Usage = field(default_factory=Usage)
    turns: int = 0
    """The number of answers."""
    unanswered: int = 0
    """The number of turns without an answer."""
    messages: list[Message] = field(default_factory=list)

    def hold(self) -> None:
        """Answers one line after the other until the input ends."""
        if sys.stdin.isatty() and not self.quiet:
            console.note(console.stderr(), HELP)
        for line in _lines():
            if line == NEW:
                self.messages.clear()
            elif line:
                self._answer(line)
            if self.was_terminated():
                break

    def _answer(self, text: str) -> None:
        """Runs one turn; a turn without an answer leaves the conversation as it was."""
        question = Message.user(text)
        request = Request(messages=(*self.opening, *self.messages, question))
        trace = self._run(request)
        if trace is not None:
            self.usage += trace.usage
        if trace is None or trace.completion is None:
            self.unanswered += 1
            return
        self.turns += 1
        self.messages += [question, trace.completion.message]
        if not self.quiet:
            console.stderr().print(report.summary(trace))

    def _run(self, request: Request) -> Trace | None:
        """Runs a request and prints the answer, or in one line why there is none."""
        with watch_run(self.conductor.planner.model.name, quiet=self.quiet) as watcher:
            error = None
            try:
                self.loop.run(self.conductor.run(request, limits=self._limits(), on_event=watcher, stream=True))
            except RunError as failure:
                error = runner.failure_reason(failure.trace)
            except ConductorError as failure:
                error = options.with_option_names(str(failure))
            except KeyboardInterrupt:
                error = "interrupted"
            watcher.end_line()
        if error is not None:
            console.fail(error)
        return watcher.trace

    def _limits(self) -> Limits:
        """Returns the limits of the next turn: the rest that the earlier ones left."""
        limits = self.conductor.limits
        remaining = {
            "usd": None if limits.usd is None else max(limits.usd - self.usage.cost, Decimal(0)),
            "tokens": None if limits.tokens is None else max(limits.tokens - self.usage.total_tokens, 0),
        }
        return limits.model_copy(update=remaining)

    @property
    def total(self) -> str:
        """The number of answers and the usage of the whole chat, in one line."""
        return f"{counted(self.turns, 'answer')} · {tokens(self.usage)} · {cost_in_words(self.usage)}"


def _lines() -> Iterator[str]:
    """Reads lines from the terminal, with editing and history, or from stdin."""
    if not sys.stdin.isatty():
        with suppress(KeyboardInterrupt), reading_errors("stdin"):
            for line in sys.stdin:
                yield line.strip()
        return
    with suppress(ImportError):  # not on every system
        import readline  # noqa: F401, PLC0415 - makes `input` edit lines
    with suppress(EOFError, KeyboardInterrupt):
        while True:
            yield input(PROMPT).strip()
    sys.stdout.write("\n")
