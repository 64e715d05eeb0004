"""The open RL Conductor for LangChain and LangGraph.

This release holds the package's name and version; the adapter itself is the next milestone.
"""

__version__ = "0.1.0"
