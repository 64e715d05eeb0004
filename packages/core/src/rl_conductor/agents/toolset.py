"""`Toolset`: the tools of one worker, made from functions, import paths, MCP servers and tools of other kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rl_conductor._internal.imports import import_object
from rl_conductor.agents.function_tool import FunctionTool
from rl_conductor.agents.mcp_server import MCPServer
from rl_conductor.agents.tool import ToolSource, ToolSourceError, WorkerTool
from rl_conductor.errors import ConfigError
from rl_conductor.models.redaction import redacted_repr

AnyTool = Callable[..., Any] | str | WorkerTool | ToolSource
"""A Python function, its name as `module:function`, an MCP server or its URL, or a tool of another kind."""


@dataclass(frozen=True)
class Toolset:
    """The tools of one worker."""

    tools: tuple[WorkerTool, ...]
    sources: tuple[ToolSource, ...]
    """Servers whose tools are listed when they are needed."""

    @classmethod
    def of(cls, tools: Sequence[AnyTool]) -> Toolset:
        """Converts functions and names to tools.

        Raises:
            ConfigError: a function can't be imported or be a tool, or two tools have the same name.
        """
        things = [_resolve(item) for item in tools]
        own = [thing for thing in things if isinstance(thing, WorkerTool)]
        names = [tool.definition.name for tool in own]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"tools: two tools are called {name!r}; rename one of them")
        return cls(tuple(own), tuple(thing for thing in things if isinstance(thing, ToolSource)))

    @property
    def description(self) -> str:
        """The names of the tools, and those of servers that offer all of theirs; the planner reads it."""
        names = [tool.definition.name for tool in self.tools]
        names += [name for source in self.sources for name in source.selected_names]
        servers = " and of the ".join(source.title for source in self.sources if not source.selected_names)
        if not names:
            return f"has the tools of the {servers}"
        return f"has the tools {', '.join(names)}" + (f" and those of the {servers}" if servers else "")

    async def list_tools(self) -> dict[str, WorkerTool]:
        """Returns the tools by name, with those of servers, which are connected if necessary.

        Raises:
            ToolSourceError: a server can't be used, or one of its tools has the name of another tool.
        """
        by_name = {tool.definition.name: tool for tool in self.tools}
        listed = await asyncio.gather(*(source.list_tools() for source in self.sources))
        for source, tools in zip(self.sources, listed, strict=True):
            for tool in tools:
                name = tool.definition.name
                if name in by_name:
                    reason = (
                        f"two tools are called {name!r}; leave one out with only=[...], or rename them with prefix="
                    )
                    raise ToolSourceError(f"{source.title}: {reason}", model=source.title)
                by_name[name] = tool
        return by_name

    async def aclose(self) -> None:
        await asyncio.gather(*(source.aclose() for source in self.sources))


def _resolve(item: AnyTool) -> WorkerTool | ToolSource:
    if isinstance(item, str):
        if item.startswith(("http://", "https://")):
            return MCPServer(url=item)
        item = import_object(item)
    if isinstance(item, WorkerTool | ToolSource):
        return item
    if not callable(item):
        raise ConfigError(
            f"tools={redacted_repr(item)} is not a function; pass functions, 'module:function' names or MCP servers"
        )
    return FunctionTool(item)
