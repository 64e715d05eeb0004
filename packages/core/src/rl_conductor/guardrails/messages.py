"""Checks a conversation outside of any run, for hosts that call guardrails themselves."""

from __future__ import annotations

from collections.abc import Sequence

from rl_conductor.calls.context import RunContext
from rl_conductor.guardrails.base import Guardrail
from rl_conductor.guardrails.runner import GuardrailRunner, Subject
from rl_conductor.guardrails.texts import rewrite_message, rewrite_request
from rl_conductor.trace.checks import Stage
from rl_conductor.types import Message, Request, prompt_in


async def check_messages(guardrails: Sequence[Guardrail], stage: Stage, messages: Sequence[Message]) -> list[Message]:
    """Returns the messages to use instead, after the guardrails of one stage.

    Args:
        guardrails: those without `stage` among their stages are left out.
        stage: `input` and `prompt` check all messages; `reply` and `answer` check the last one, which the others
            before it, and the results of tools among them, may support.
        messages: the conversation.

    Raises:
        GuardrailError: a guardrail refused the messages, or failed.
    """
    selected = [guardrail for guardrail in guardrails if stage in guardrail.stages]
    if not selected:
        return list(messages)
    runner = GuardrailRunner(RunContext(), calls=[])
    question = prompt_in(messages)
    if stage in ("input", "prompt"):
        request = Request(messages=tuple(messages))
        subject = Subject(
            stage=stage, value=request, rewrite=rewrite_request, messages=request.messages, question=question
        )
        return list((await runner.check(selected, subject)).messages)
    results = tuple(message.text for message in messages if message.role == "tool")
    reply = Subject(stage=stage, value=messages[-1], rewrite=rewrite_message, question=question, evidence=results)
    return [*messages[:-1], await runner.check(selected, reply)]
