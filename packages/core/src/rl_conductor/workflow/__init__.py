"""Workflows, the space of allowed plans, policies and limits. Pure values."""

from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.policy import DataRule, Flow, Policy
from rl_conductor.workflow.workflow import Step, Workflow

__all__ = [
    "DataRule",
    "Flow",
    "Limits",
    "PlanSpace",
    "Policy",
    "Step",
    "Workflow",
]
