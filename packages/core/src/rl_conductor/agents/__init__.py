"""Agents: workers that call a base model several times for one reply, such as models with tools of their own.

In: a request to the worker. Out: one completion with the usage of all calls, which are recorded as nested calls.
Above `calls`, because agents make budgeted model calls; below `pool`, which creates workers from them.
"""

from rl_conductor.agents.a2a_agent import A2AAgent
from rl_conductor.agents.delegating import BaseModelSession, DelegatingModel
from rl_conductor.agents.function_tool import FunctionTool
from rl_conductor.agents.mcp_server import MCPServer
from rl_conductor.agents.tool import ToolError, ToolSource, ToolSourceError, WorkerTool
from rl_conductor.agents.tool_loop import ToolLoopModel
from rl_conductor.agents.toolset import AnyTool

__all__ = [
    "A2AAgent",
    "AnyTool",
    "BaseModelSession",
    "DelegatingModel",
    "FunctionTool",
    "MCPServer",
    "ToolError",
    "ToolLoopModel",
    "ToolSource",
    "ToolSourceError",
    "WorkerTool",
]
