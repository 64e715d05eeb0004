"""The open RL Conductor for LangChain and LangGraph.

The public names stand in `__init__.pyi`. Each is imported when it is first used; LangGraph is needed for its own.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
