# The public names; `__init__.py` imports each from here when it is first used (relative, as lazy_loader asks).
from .chat import ChatConductor
from .models import ChatModel, RunnableModel
from .node import create_conductor
from .pool import pool_of
from .progress import Progress, aget_progress, get_progress
from .runnable import Planned, RunnableConductor

__all__ = [
    "ChatConductor",
    "ChatModel",
    "Planned",
    "Progress",
    "RunnableConductor",
    "RunnableModel",
    "aget_progress",
    "create_conductor",
    "get_progress",
    "pool_of",
]
