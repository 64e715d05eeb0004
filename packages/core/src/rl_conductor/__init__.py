"""The open RL Conductor: a language model that answers by writing a workflow over other models and running it.

from rl_conductor import Conductor
print(Conductor.from_env().run_sync("What is 17 * 23?").completion.text)
"""

from __future__ import annotations

from rl_conductor.conductor import MINI, ULTRA, Conductor, Profile
from rl_conductor.discovery import Found, discover
from rl_conductor.errors import (
    ConductorError,
    ConfigError,
    LimitError,
    ModelError,
    PolicyError,
    RunError,
    WorkflowError,
)
from rl_conductor.limits import Limits
from rl_conductor.models import Capabilities, Model, model
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.planner import Planner
from rl_conductor.policy import DataRule, Flow, Policy
from rl_conductor.pool import Worker, WorkerPool
from rl_conductor.trace import Event, Trace
from rl_conductor.types import Card, Completion, Message, Price, Request, Sampling, Tool, Usage
from rl_conductor.workflow import Step, Workflow

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
    "Event",
    "Flow",
    "Found",
    "LimitError",
    "Limits",
    "Message",
    "Model",
    "ModelError",
    "Planner",
    "Policy",
    "PolicyError",
    "Price",
    "Profile",
    "Request",
    "RunError",
    "Sampling",
    "ScriptedModel",
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
