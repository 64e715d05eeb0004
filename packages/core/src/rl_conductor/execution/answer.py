"""Which reply of a run is its answer, and what the caller gets of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rl_conductor.errors import RunError
from rl_conductor.trace.trace import Answer, Round, StepResult, Trace
from rl_conductor.types import Completion, Message, TextPart, Usage


def answer_in(rounds: Sequence[Round], *, said: str, settle: bool) -> Answer | None:
    """The newest final reply; else, where one may `settle` for it, the newest reply there is.

    Args:
        rounds: what was done.
        said: what was passed on of an answer that broke off; another one can't take its place any more.
        settle: whether an earlier step's reply may do.
    """
    for number, one in reversed(list(enumerate(rounds))):
        if one.results and one.results[-1].reply is not None:
            source: Literal["tool_calls", "final"] = "tool_calls" if one.results[-1].reply.tool_calls else "final"
            return Answer(source=source, round=number, step=len(one.results) - 1)
        if said:
            return None
    if not settle:
        return None
    for number, one in reversed(list(enumerate(rounds))):
        for result in reversed(one.results):
            if result.reply is not None:
                return Answer(source="evidence", round=number, step=result.index)
    return None


def failures_in(rounds: Sequence[Round]) -> Sequence[str]:
    """What went wrong in planning and in the steps."""
    found = list(dict.fromkeys(f"planning: {error}" for one in rounds for error in one.plan.errors))
    found += [
        f"step {result.index + 1}: {result.error}"
        for one in rounds
        for result in one.results
        if result.status == "failed"
    ]
    return found


def answered(trace: Trace) -> Trace:
    """The trace itself, if it has an answer.

    Raises:
        RunError: it has none; the error carries it.
    """
    if trace.completion is None:
        raise RunError(f"there is no answer: {trace.error}", trace=trace)
    return trace


def completion_of(result: StepResult, usage: Usage, said: str) -> Completion:
    """The answer as the caller gets it: the text that was streamed, if any was, with the usage of the whole run."""
    message = result.reply
    assert message is not None
    made = next(call.completion for call in result.calls if call.completion and _says(call.completion, message))
    if said and said != message.text:
        kept = tuple(part for part in message.content if not isinstance(part, TextPart))
        message = message.model_copy(update={"content": (*kept, TextPart(text=said))})
    return made.model_copy(update={"message": message, "usage": usage})


def _says(completion: Completion, message: Message) -> bool:
    said = completion.message
    return (said.content, said.tool_calls) == (message.content, message.tool_calls)
