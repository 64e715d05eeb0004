"""Replays a trace: from its recorded replies without model calls, or with one step changed.

`replay` uses the real planner, prompts and executor. It costs nothing and does not wait, so limits and deadlines are
not enforced again: calls that they rejected are rejected again because the recording says so. `differences` compares
the two runs.

`replay_changed` runs one step with another worker or subtask, and the steps that depend on it; the others reuse their
replies.
"""

from rl_conductor.replay.changed import StepChange, is_changeable, replay_changed, rounds_before
from rl_conductor.replay.comparison import differences
from rl_conductor.replay.unchanged import replay

__all__ = ["StepChange", "differences", "is_changeable", "replay", "replay_changed", "rounds_before"]
