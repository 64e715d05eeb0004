"""The open RL Conductor as a LlamaIndex LLM.

This release holds the package's name and version; the adapter itself is the next milestone.
"""

__version__ = "0.1.0"
