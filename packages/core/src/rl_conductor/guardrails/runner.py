"""Runs the guardrails of one stage: those that rewrite one after the other, then the others concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar, cast

from rl_conductor.calls.context import RunContext
from rl_conductor.calls.failures import log
from rl_conductor.calls.model_call import ModelCall
from rl_conductor.errors import GuardrailError, ScriptError
from rl_conductor.guardrails.base import Allow, CallModel, Content, Guardrail, Redact, Refuse, Replace, Verdict
from rl_conductor.guardrails.texts import Rewrite, texts_of, with_texts
from rl_conductor.models import Model
from rl_conductor.models.redaction import redacted_text
from rl_conductor.trace.checks import GUARDRAIL_PREFIX, CheckOutcome, GuardrailCheck, Stage
from rl_conductor.trace.trace import Call
from rl_conductor.types import Card, Completion, FilePart, ImagePart, Message, Request

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Subject(Generic[T]):
    """A value with texts to check at one stage, and the texts to compare them with."""

    stage: Stage
    value: T
    rewrite: Callable[[T, Rewrite], T]
    """Finds the texts in `value`."""
    messages: Sequence[Message] = ()
    """The messages whose images and files are checked."""
    question: str = ""
    evidence: tuple[str, ...] = ()
    worker: Card | None = None

    @property
    def reply(self) -> Message | None:
        """The reply, if that is checked."""
        return self.value if isinstance(self.value, Message) else None

    def content(self, call: CallModel) -> Content:
        """Returns the input of the guardrails."""
        parts = [part for message in self.messages for part in message.content]
        return Content(
            stage=self.stage,
            texts=texts_of(self.value, self.rewrite),
            images=tuple(part for part in parts if isinstance(part, ImagePart)),
            files=tuple(part for part in parts if isinstance(part, FilePart)),
            reply=self.reply,
            question=self.question,
            evidence=self.evidence,
            worker=self.worker,
            call=call,
        )


@dataclass
class GuardrailRunner:
    """Runs checks within the limits of a run, and collects their records."""

    run: RunContext
    calls: list[Call]
    """Receives the calls that guardrails make."""
    checks: list[GuardrailCheck] = field(default_factory=list)
    """Receives a record of every check."""

    async def check(self, guardrails: Sequence[Guardrail], subject: Subject[T]) -> T:
        """Returns `subject.value` with the texts to use.

        Raises:
            GuardrailError: a guardrail refused the texts, or failed and does not fail open.
        """
        for guardrail in guardrails:
            if guardrail.rewrites:
                subject = replace(subject, value=await self._check(guardrail, subject))
        others = [guardrail for guardrail in guardrails if not guardrail.rewrites]
        if len(others) == 1:
            await self._check(others[0], subject)
        elif others:
            await self._check_all(others, subject)
        return subject.value

    async def _check_all(self, guardrails: Sequence[Guardrail], subject: Subject[T]) -> None:
        """Runs checks concurrently; the first one that refuses cancels the others."""
        tasks = [asyncio.create_task(self._check(guardrail, subject)) for guardrail in guardrails]
        try:
            finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in (task for task in tasks if task in finished):
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _check(self, guardrail: Guardrail, subject: Subject[T]) -> T:
        """Returns the value to use after the check of one guardrail, and records the check."""
        started, value = self.run.elapsed(), subject.value
        outcome: CheckOutcome
        try:
            verdict = await self._verdict(guardrail, subject)
            value, outcome = _apply(verdict, subject, rewrites=guardrail.rewrites)
            reason = "" if outcome == "allowed" and isinstance(verdict, Redact) else verdict.reason
        except ScriptError:
            raise
        except Exception as error:  # whatever a user's guardrail raises
            outcome = "failed_open" if guardrail.fail_open else "failed"
            reason = _describe(error, guardrail)
            log.warning("the guardrail %r failed at the stage %r: %s", guardrail.name, subject.stage, reason)
        check = GuardrailCheck(
            guardrail=guardrail.name,
            stage=subject.stage,
            outcome=outcome,
            reason=reason,
            worker=subject.worker.name if subject.worker else None,
            started=started,
            seconds=self.run.elapsed() - started,
        )
        self.checks.append(check)
        if check.is_blocking:
            raise GuardrailError(check)
        return value

    async def _verdict(self, guardrail: Guardrail, subject: Subject[T]) -> Verdict:
        limit, remaining = guardrail.timeout, self.run.remaining()
        seconds = min((value for value in (limit, remaining) if value is not None), default=None)
        timer = asyncio.timeout(seconds)
        try:
            async with timer:
                return await guardrail.check(subject.content(partial(self._call_model, guardrail)))
        except TimeoutError:
            if not timer.expired():
                raise
            over = f"its timeout of {limit:g} s" if limit is not None and seconds == limit else self.run.deadline_name
            raise TimeoutError(f"{over} was over before there was a verdict") from None

    async def _call_model(
        self,
        guardrail: Guardrail,
        model: Model,
        request: Request,
        *,
        slot: AbstractAsyncContextManager[object] | None = None,
    ) -> Completion:
        """Calls a model for a guardrail; see `CallModel`."""
        calls: list[Call] = []
        call = ModelCall(
            run=self.run.unguarded(),
            model=model,
            request=request,
            calls=calls,
            worker=f"{GUARDRAIL_PREFIX}{guardrail.name}",
            slot=slot,
        )
        try:
            return await call.complete()
        finally:
            self.calls.extend(map(_without_texts, calls))


def _without_texts(call: Call) -> Call:
    """Removes texts, which may quote content that a guardrail keeps out of the trace."""
    completion = call.completion
    if completion is not None:
        completion = completion.model_copy(update={"message": Message.assistant()})
    return call.model_copy(update={"completion": completion, "nested": None})


def _apply(verdict: Verdict, subject: Subject[T], *, rewrites: bool) -> tuple[T, CheckOutcome]:
    """Returns the value after `verdict`, and the result for the trace.

    Raises:
        TypeError: the verdict is not one, or the guardrail has not declared that it rewrites.
        ValueError: the verdict does not fit the stage or the number of texts.
    """
    if isinstance(verdict, Allow):
        return subject.value, "allowed"
    if isinstance(verdict, Refuse):
        return subject.value, "refused"
    if not isinstance(verdict, Redact | Replace):
        raise TypeError(f"it returned a {type(verdict).__name__}; return Allow, Redact, Replace or Refuse")
    if not rewrites:
        raise TypeError(f"it returned {type(verdict).__name__}; set rewrites = True in its class")
    if isinstance(verdict, Redact):
        return _redacted(verdict, subject)
    if subject.reply is None:
        raise ValueError(f"it returned Replace at the stage {subject.stage!r}; only a whole reply can be replaced")
    return cast(T, Message.assistant(verdict.text)), "replaced"


def _redacted(verdict: Redact, subject: Subject[T]) -> tuple[T, CheckOutcome]:
    texts, count = texts_of(subject.value, subject.rewrite), len(verdict.texts)
    if count != len(texts) or not all(isinstance(text, str) for text in verdict.texts):
        raise ValueError(f"it returned {count} texts for {len(texts)}; return one for each, in the same order")
    if tuple(verdict.texts) == texts:
        return subject.value, "allowed"
    return with_texts(subject.value, subject.rewrite, verdict.texts), "redacted"


def _describe(error: Exception, guardrail: Guardrail) -> str:
    text = redacted_text(error, guardrail)
    return text if isinstance(error, TimeoutError) else f"{type(error).__name__}: {text}"
