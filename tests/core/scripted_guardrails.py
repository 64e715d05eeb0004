"""Guardrails for tests: a redactor of one secret, and one with a function as its check."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import ClassVar

from core.runs import plan, pool_of
from rl_conductor.conductor import Conductor
from rl_conductor.guardrails.base import Allow, Content, Guardrail, Redact, Stages, Verdict
from rl_conductor.models.scripted import ScriptedModel

SECRET = "tel-0123456789"
HIDDEN = "<PHONE>"


@dataclass(kw_only=True, eq=False)
class Hide(Guardrail):
    """Replaces `SECRET` wherever it stands."""

    rewrites: ClassVar[bool] = True
    name: str = "hide"
    stages: Stages = ("input", "prompt", "reply", "answer")
    seen: list[Content] = field(default_factory=list)

    async def check(self, content: Content) -> Verdict:
        """Redacts the texts that contain it."""
        self.seen.append(content)
        texts = tuple(text.replace(SECRET, HIDDEN) for text in content.texts)
        return Redact(texts, "a phone number") if texts != content.texts else Allow()


@dataclass(kw_only=True, eq=False)
class Check(Guardrail):
    """Returns what `verdict` returns."""

    name: str = "check"
    verdict: Callable[[Content], Awaitable[Verdict]]
    seen: list[Content] = field(default_factory=list)

    async def check(self, content: Content) -> Verdict:
        """Calls `verdict`."""
        self.seen.append(content)
        return await self.verdict(content)


class Rewriting(Check):
    """The same, for verdicts that rewrite."""

    rewrites: ClassVar[bool] = True


def always(verdict: Verdict) -> Callable[[Content], Awaitable[Verdict]]:
    """A check with one verdict."""

    async def check(_: Content) -> Verdict:
        return verdict

    return check


def guarded_conductor(*guardrails: Check | Hide) -> Conductor:
    """A conductor with a plan of two steps, the second of which replies with `SECRET`."""
    planner = ScriptedModel(plan((0, "find it", []), (1, "say it", ["all"])))
    return Conductor(planner, pool_of(a="found", b=f"it is {SECRET}"), guardrails=guardrails)
