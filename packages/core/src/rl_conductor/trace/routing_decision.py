"""`RoutingDecision`: whether a request needs a plan, as a trace records it. Pure."""

from __future__ import annotations

from typing import Literal

from rl_conductor.types import Value


class RoutingDecision(Value):
    """A classifier's decision, before planning, whether a request needs a plan."""

    route: Literal["single", "conductor"]
    """One call of one worker, or a plan."""
    worker: str
    """The worker of that one call."""
    probability: float | None
    """Probability that this call's answer is correct; `None` if the request differs too much from the training data."""
    threshold: float
    """The minimum probability for a single call."""
    classifier: str
    """SHA-256 of the classifier that decided."""
    reason: str = ""
    """Why a plan is needed regardless of the probability; empty when the probability alone decided."""

    @property
    def in_words(self) -> str:
        """The decision and its reason, as a sentence without a period."""
        reason = self.reason
        if self.probability is not None and not reason:
            comparison = "from" if self.route == "single" else "below"
            reason = f"right with probability {self.probability:.3f}, {comparison} {self.threshold:.3f}"
        choice = f"one call of {self.worker}" if self.route == "single" else "planned"
        return f"{choice}: {reason} (router {self.classifier[:12]})"
