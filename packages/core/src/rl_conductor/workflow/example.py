"""`PlanExample`: a question with a good workflow, which the planner is shown as a demonstration. Pure."""

from __future__ import annotations

from rl_conductor.types import Text
from rl_conductor.types.value import UserValue
from rl_conductor.workflow.workflow import Workflow

MAX_EXAMPLES = 4
"""Maximum number of worked examples in one prompt; there are as many built-in ones."""


class PlanExample(UserValue):
    """A worked example for the planner's prompt."""

    question: Text
    """A question of a user."""
    workflow: Workflow
    """The right plan for it."""
    reasoning: Text = ""
    """One short sentence before the plan, such as why these workers were chosen."""
