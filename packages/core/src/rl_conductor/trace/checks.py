"""The checks of guardrails, as a trace records them. Pure."""

from __future__ import annotations

from typing import Literal

from rl_conductor.types import Text, Value

Stage = Literal["input", "prompt", "reply", "answer"]
"""The point at which a guardrail checks a run: the caller's request before planning, a worker's prompt before it is
sent, a worker's reply, or the reply of a plan's last step, which is the answer."""
ENDS_RUN: tuple[Stage, ...] = ("input", "answer")
"""The stages at which a refusal ends the run; at the others, it ends the call of one worker."""

CheckOutcome = Literal["allowed", "redacted", "replaced", "refused", "failed", "failed_open"]
"""The result of a check; `failed_open` means that the guardrail failed and the text was used all the same."""
GUARDRAIL_PREFIX = "guardrail:"
"""Begins the `worker` of calls that guardrails make."""
BLOCKING: tuple[CheckOutcome, ...] = ("refused", "failed")
"""The results after which the text is not used."""

_IN_WORDS = {"failed": "could not check", "failed_open": "could not check, and let pass,"}


class GuardrailCheck(Value):
    """One check by a guardrail, and its result."""

    guardrail: str
    """The guardrail's name."""
    stage: Stage
    """The part of the run that was checked."""
    outcome: CheckOutcome
    """The verdict, or that the check failed."""
    reason: Text = ""
    """The guardrail's reason."""
    worker: str | None = None
    """The worker whose prompt or reply was checked."""
    started: float = 0.0
    """Seconds since the run began."""
    seconds: float = 0.0
    """Duration of the check."""

    @property
    def is_blocking(self) -> bool:
        """Whether the text was not used."""
        return self.outcome in BLOCKING

    @property
    def in_words(self) -> str:
        """The result and its reason, as a sentence without a period."""
        reason = f": {self.reason}" if self.reason else ""
        return f"the guardrail {self.guardrail!r} {_IN_WORDS.get(self.outcome, self.outcome)} the {self.stage}{reason}"
