"""Selects the reply that is a run's answer, and builds the completion that the caller gets. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rl_conductor.errors import RefusedError, RunError
from rl_conductor.trace.trace import Answer, Round, StepResult, Trace
from rl_conductor.types import Completion, Message, TextPart, Usage


def select_answer(rounds: Sequence[Round], *, streamed_text: str, allow_evidence: bool) -> Answer | None:
    """Selects the newest final reply, or else the newest reply of an earlier step.

    Args:
        rounds: the rounds so far.
        streamed_text: the part of the newest answer that was passed on already; an older one can't replace it.
        allow_evidence: whether an earlier step's reply may be the answer.
    """
    for number, round_ in reversed(list(enumerate(rounds))):
        if round_.results and round_.results[-1].reply is not None:
            source: Literal["tool_calls", "final"] = "tool_calls" if round_.results[-1].reply.tool_calls else "final"
            return Answer(source=source, round=number, step=len(round_.results) - 1)
        if streamed_text:
            return None
    if not allow_evidence:
        return None
    for number, round_ in reversed(list(enumerate(rounds))):
        for result in reversed(round_.results):
            if result.reply is not None:
                return Answer(source="evidence", round=number, step=result.index)
    return None


def list_failures(rounds: Sequence[Round]) -> Sequence[str]:
    """Lists the errors of planning, each once, and those of failed steps."""
    failures = list(dict.fromkeys(f"planning: {error}" for round_ in rounds for error in round_.plan.errors))
    failures += [
        f"step {result.index + 1}: {result.error}"
        for round_ in rounds
        for result in round_.results
        if result.status == "failed"
    ]
    return failures


def raise_if_unanswered(trace: Trace, *, ends_run: bool = False) -> Trace:
    """Returns the trace if it has an answer.

    Args:
        trace: the trace of a finished run.
        ends_run: whether a run around this one ends with it.

    Raises:
        RunError: it has none; the error carries it.
        RefusedError: it has none because a guardrail refused the request or the answer.
    """
    if trace.completion is None:
        raise run_error(trace, ends_run=ends_run)
    return trace


def run_error(trace: Trace, *, ends_run: bool = False) -> RunError:
    """Returns the error for a trace without an answer."""
    message, check = f"there is no answer: {trace.error}", trace.refusal
    if check is None:
        return RunError(message, trace=trace, ends_run=ends_run)
    return RefusedError(message, trace=trace, check=check)


def to_completion(result: StepResult, usage: Usage, streamed_text: str) -> Completion:
    """Builds the caller's completion: the text that was streamed, if any, and the usage of the whole run."""
    message = result.reply
    assert message is not None
    original = next(call.completion for call in result.calls if call.completion and _contains(call.completion, message))
    if streamed_text and streamed_text != message.text:
        other_parts = tuple(part for part in message.content if not isinstance(part, TextPart))
        message = message.model_copy(update={"content": (*other_parts, TextPart(text=streamed_text))})
    return original.model_copy(update={"message": message, "usage": usage})


def _contains(completion: Completion, message: Message) -> bool:
    own = completion.message
    return (own.content, own.tool_calls) == (message.content, message.tool_calls)
