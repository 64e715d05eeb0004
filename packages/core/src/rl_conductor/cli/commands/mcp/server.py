"""An MCP server with a tool `ask` that answers questions with a conductor, and its application for HTTP."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field
from starlette.types import ASGIApp

from rl_conductor._internal.version import package_version
from rl_conductor.cli.serving.client_run import AskResult, ClientLimits, progress_message
from rl_conductor.cli.serving.http import with_api_key
from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConductorError, RunError
from rl_conductor.trace.events import Finished
from rl_conductor.trace.trace import Trace
from rl_conductor.workflow.limits import Limits

PATH = "/mcp"
"""The path of the MCP endpoint over HTTP."""
DESCRIPTION = """\
Answers a question with a team of language models: a planner splits it into steps, workers do them, and the last one \
gives the answer. Put everything that is needed into the question, because the team sees nothing else."""
MAX_MESSAGE_CHARS = 200
"""Maximum length of a progress message; longer ones are cut."""


Question = Annotated[str, Field(min_length=1, description="The question or task, complete in itself.")]
MaxUsd = Annotated[float | None, Field(ge=0, description="Maximum cost in US dollars.")]
MaxSeconds = Annotated[float | None, Field(gt=0, description="Time limit in seconds.")]
MaxSteps = Annotated[int | None, Field(ge=1, description="Maximum number of steps.")]


def conductor_server(conductor: Conductor) -> MCPServer:
    """Creates an MCP server with the tool `ask`, which reports each step as progress."""
    server: MCPServer = MCPServer("rl-conductor", version=package_version(), log_level="WARNING")

    async def ask(
        question: Question,
        context: Context[Any, Any],
        max_usd: MaxUsd = None,
        max_seconds: MaxSeconds = None,
        max_steps: MaxSteps = None,
    ) -> Annotated[CallToolResult, AskResult]:
        client_limits = ClientLimits(max_usd=max_usd, max_seconds=max_seconds, max_steps=max_steps)
        try:
            return _result(await _run(conductor, question, client_limits.lower(conductor.limits), context))
        except RunError as error:
            return _result(error.trace)
        except ConductorError as error:
            return CallToolResult(content=[TextContent(type="text", text=str(error))], is_error=True)

    hints = ToolAnnotations(title="Ask a team of models", read_only_hint=True, open_world_hint=True)
    server.add_tool(ask, description=DESCRIPTION, annotations=hints)
    return server


def http_app(server: MCPServer, api_key: str | None) -> ASGIApp:
    """Returns the ASGI application, which refuses requests without `api_key`, if there is one."""
    # Without a token, web pages must not reach the server by DNS rebinding, so it demands a local name.
    security = None if api_key is None else TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = server.streamable_http_app(transport_security=security)
    return app if api_key is None else with_api_key(app, api_key)


async def _run(conductor: Conductor, question: str, limits: Limits, context: Context[Any, Any]) -> Trace:
    """Runs a question and reports its progress; cancelling it cancels the run."""
    count = 0
    trace: Trace | None = None
    async with aclosing(conductor.events(question, limits=limits)) as events:
        async for event in events:
            if isinstance(event, Finished):
                trace = event.trace
            elif (message := progress_message(event)) is not None:
                count += 1
                await context.report_progress(count, message=message[:MAX_MESSAGE_CHARS])
    assert trace is not None
    return trace


def _result(trace: Trace) -> CallToolResult:
    text = trace.text if trace.completion else f"there is no answer: {trace.error}"
    return CallToolResult(
        content=[TextContent(type="text", text=text)],
        structured_content=AskResult.of(trace).model_dump(mode="json"),
        is_error=trace.completion is None,
    )
