"""The plan language: how a workflow is spelled, parsed, repaired, and held to by constrained decoding. Pure.

In: text and a `PlanSpace`. Out: a `Workflow` and what was repaired; or a grammar or JSON schema for decoding.
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
