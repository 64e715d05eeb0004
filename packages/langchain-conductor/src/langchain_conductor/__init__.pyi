# The public names; `__init__.py` imports each from here when it is first used (relative, as lazy_loader asks).
from .chat import ChatConductor
from .models import ChatModel, RunnableModel
from .pool import conductor_of, pool_of

__all__ = ["ChatConductor", "ChatModel", "RunnableModel", "conductor_of", "pool_of"]
