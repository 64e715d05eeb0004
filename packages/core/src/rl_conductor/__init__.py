"""RL Conductor: a language model that answers by planning and running a workflow of calls to other models.

Public names are imported lazily on first use, so `import rl_conductor` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_conductor.calls.shared_budget import SharedBudget
    from rl_conductor.conductor import Conductor
    from rl_conductor.config.discovered_pool import DiscoveredPool
    from rl_conductor.config.discovery import discover
    from rl_conductor.config.profiles import MINI, ULTRA, Profile
    from rl_conductor.errors import (
        ConductorError,
        ConfigError,
        LimitError,
        ModelError,
        PolicyError,
        RunError,
        WorkflowError,
    )
    from rl_conductor.models import Capabilities, Model, model
    from rl_conductor.models.scripted import ScriptedModel
    from rl_conductor.planning.planner import Planner
    from rl_conductor.pool.pool import WorkerPool
    from rl_conductor.pool.worker import Worker
    from rl_conductor.trace.events import Event
    from rl_conductor.trace.trace import Trace
    from rl_conductor.types import Card, Completion, Delta, Message, Price, Request, Sampling, Tool, Usage
    from rl_conductor.workflow.example import PlanExample
    from rl_conductor.workflow.limits import Limits
    from rl_conductor.workflow.policy import DataRule, Flow, Policy
    from rl_conductor.workflow.workflow import Step, Workflow

__all__ = [
    "MINI",
    "ULTRA",
    "Capabilities",
    "Card",
    "Completion",
    "Conductor",
    "ConductorError",
    "ConfigError",
    "DataRule",
    "Delta",
    "DiscoveredPool",
    "Event",
    "Flow",
    "LimitError",
    "Limits",
    "Message",
    "Model",
    "ModelError",
    "PlanExample",
    "Planner",
    "Policy",
    "PolicyError",
    "Price",
    "Profile",
    "Request",
    "RunError",
    "Sampling",
    "ScriptedModel",
    "SharedBudget",
    "Step",
    "Tool",
    "Trace",
    "Usage",
    "Worker",
    "WorkerPool",
    "Workflow",
    "WorkflowError",
    "discover",
    "model",
]

_EXPORTS = {
    "calls.shared_budget": ("SharedBudget",),
    "conductor": ("Conductor",),
    "config.discovered_pool": ("DiscoveredPool",),
    "config.discovery": ("discover",),
    "config.profiles": ("MINI", "ULTRA", "Profile"),
    "errors": (
        "ConductorError",
        "ConfigError",
        "LimitError",
        "ModelError",
        "PolicyError",
        "RunError",
        "WorkflowError",
    ),
    "models": ("Capabilities", "Model", "model"),
    "models.scripted": ("ScriptedModel",),
    "planning.planner": ("Planner",),
    "pool.pool": ("WorkerPool",),
    "pool.worker": ("Worker",),
    "trace.events": ("Event",),
    "trace.trace": ("Trace",),
    "types": ("Card", "Completion", "Delta", "Message", "Price", "Request", "Sampling", "Tool", "Usage"),
    "workflow.example": ("PlanExample",),
    "workflow.limits": ("Limits",),
    "workflow.policy": ("DataRule", "Flow", "Policy"),
    "workflow.workflow": ("Step", "Workflow"),
}
_MODULES = {name: f"rl_conductor.{module}" for module, names in _EXPORTS.items() for name in names}


if not TYPE_CHECKING:  # else every name would pass type checks

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'rl_conductor' has no attribute {name!r}")
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
