"""The plan language: rendering, parsing and repairing workflows, and constraints for decoding them. Pure.

In: text and a `PlanSpace`. Out: a `Plan` (workflow, reasoning and repairs); or a grammar or JSON schema for decoding.
"""

from rl_conductor.plan_text.forms import Plan, render
from rl_conductor.plan_text.grammar import constraint
from rl_conductor.plan_text.parser import parse

__all__ = [
    "Plan",
    "constraint",
    "parse",
    "render",
]
