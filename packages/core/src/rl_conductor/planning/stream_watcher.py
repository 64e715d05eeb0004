"""`StreamWatcher`: finds the complete steps in a plan that is still being written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rl_conductor.plan_text.forms import Form
from rl_conductor.plan_text.parser import completed_steps
from rl_conductor.planning.plan_stream import PlanItem, PlanRequest, ReadyStep
from rl_conductor.trace.events import PlanDelta
from rl_conductor.workflow.workflow import Step

MAX_EARLY_PARSES = 100
"""Maximum number of times that the unfinished text of one plan is parsed for steps that can start early."""


@dataclass
class StreamWatcher:
    """Emits the deltas of a streamed plan, and sends each step as soon as the next one begins, except in `lists`."""

    plan_request: PlanRequest
    form: Form
    send: Callable[[PlanItem], None]
    thinks_first: bool = False
    """Whether replies begin inside of a thinking block."""
    pieces: list[str] = field(default_factory=list)
    sent_steps: int = 0
    parses: int = 0

    def __post_init__(self) -> None:
        self._has_listener = self.plan_request.run.has_listener

    def feed(self, delta: str) -> None:
        """Processes the next text delta. When a step may begin in it, the ones before are complete."""
        if self._has_listener:
            self.plan_request.run.emit(PlanDelta(round=self.plan_request.round_index, text=delta))
        if self.form == "rows":
            last_character = self.pieces[-1][-1:] if self.pieces else ""
            begins_step = "\n[" in last_character + delta
        else:
            begins_step = self.form == "object" and "{" in delta  # in `lists`, no step is complete before the end
        self.pieces.append(delta)
        if begins_step and self.parses < MAX_EARLY_PARSES:
            self.parses += 1
            text, space = "".join(self.pieces), self.plan_request.space
            self._send_steps(completed_steps(text, space, self.form, thinks_first=self.thinks_first))

    def _send_steps(self, steps: Sequence[Step]) -> None:
        """Sends the steps that were not sent before."""
        for step in steps[self.sent_steps :]:
            self.send(ReadyStep(self.sent_steps, step))
            self.sent_steps += 1
