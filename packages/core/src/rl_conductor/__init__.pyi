# The public names; `__init__.py` imports each from here when it is first used (relative, as lazy_loader asks).
from .conductor import Conductor
from .discovery import Found, discover
from .errors import (
    ConductorError,
    ConfigError,
    LimitError,
    ModelError,
    PolicyError,
    RunError,
    WorkflowError,
)
from .events import Event
from .limits import Limits
from .models import Capabilities, Model, model
from .models.scripted import ScriptedModel
from .planner import Planner
from .policy import DataRule, Flow, Policy
from .pool import Worker, WorkerPool
from .profiles import MINI, ULTRA, Profile
from .trace import Trace
from .types import Card, Completion, Message, Price, Request, Sampling, Tool, Usage
from .workflow import Step, Workflow

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
