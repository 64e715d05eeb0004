"""`MCPConnection`: one connection to an MCP server on one event loop, owned by a task of its own.

The SDK has to close a connection in the task that opened it, while any number of runs use it and may be cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CONNECTION_CLOSED,
    REQUEST_TIMEOUT,
    CallToolResult,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from pydantic import ValidationError
from pydantic_core import to_json

from rl_conductor.agents import bounded_lines
from rl_conductor.agents.mcp_tool_list import ToolListFilter
from rl_conductor.agents.stderr_tail import StderrTail
from rl_conductor.agents.tool import ToolError, ToolSourceError
from rl_conductor.models.http.reply_limit import ACCEPTED_ENCODINGS, event_hooks
from rl_conductor.models.vendor_errors import MAX_ERROR_LENGTH, describe_violation
from rl_conductor.types import Tool

if TYPE_CHECKING:
    from rl_conductor.agents.mcp_server import MCPServer

CONNECT_TIMEOUT = 30.0
"""Seconds for starting a server and for the handshake."""
CLOSE_TIMEOUT = 10.0
"""Seconds after which a server that does not let itself be closed is abandoned."""
REASON_TIMEOUT = 0.5
"""Seconds until the SDK has said why a connection was lost; of a program that has ended, it says nothing."""
LOST = (OSError, httpx2.HTTPError, anyio.BrokenResourceError, anyio.ClosedResourceError)
"""Errors of a connection that can't be used any more."""


def _is_shown(record: logging.LogRecord) -> bool:
    """Shows tracebacks of invalid messages at the level DEBUG alone: a server may write anything, and any number."""
    if record.exc_info:
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
    return logging.getLogger(record.name).isEnabledFor(record.levelno)


for _name in ("mcp.client.stdio", "mcp.client.streamable_http"):
    logging.getLogger(_name).addFilter(_is_shown)


class MCPConnection:
    """Connects on first use, and again after the connection was lost."""

    def __init__(self, server: MCPServer) -> None:
        self._server = server
        self._owner: asyncio.Task[str] | None = None
        self._ready: asyncio.Future[Client | str] | None = None
        """The client, or why there is none."""
        self._stop: asyncio.Event
        self._closing: set[asyncio.Task[str]] = set()
        self._stderr: StderrTail | None = None
        self._invalid_messages = 0
        self._tool_lists = ToolListFilter()
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._owner is not None and not self._owner.done()

    @property
    def left_out(self) -> Mapping[str, str]:
        """The tools of the server that can't be offered to a model, and why."""
        return self._tool_lists.reasons

    async def list_tools(self, max_tools: int) -> list[Tool]:
        """Returns the tools of the server; of more than `max_tools`, the first ones.

        Raises:
            ToolSourceError: the server can't be reached, or its reply is invalid.
        """
        tools: list[Tool] = []
        cursor: str | None = None
        client, owner = await self._client()
        async with (
            self._errors_as(partial(self._lost, owner=owner), owner, CONNECT_TIMEOUT),
            asyncio.timeout(CONNECT_TIMEOUT),  # for all pages, of which there may be many
        ):
            while len(tools) < max_tools:
                page = await client.list_tools(cursor=cursor)
                tools += [
                    Tool(name=tool.name, description=tool.description or "", parameters=tool.input_schema)
                    for tool in page.tools
                ]
                previous, cursor = cursor, page.next_cursor
                if cursor in (None, previous):  # the same again from a server that ignores it
                    break
        return tools[:max_tools]

    async def call(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """Calls a tool and returns the text of its result, and whether that is an error.

        Raises:
            ToolError: the server rejected the call, its result is invalid, or it took too long.
            ToolSourceError: the connection is lost.
        """
        client, owner = await self._client()
        timeout = self._server.timeout
        async with self._errors_as(ToolError, owner, timeout):
            result = await client.call_tool(name, arguments, read_timeout_seconds=timeout)
        return _text(result), result.is_error

    async def aclose(self) -> None:
        """Closes the connection for good, and waits until a program that was started has ended."""
        self._is_closed = True
        self._discard()
        if self._closing:
            _, late = await asyncio.wait(self._closing, timeout=CLOSE_TIMEOUT)
            for task in late:
                task.cancel()

    # -------------------------------------------------------------------------------- the connection

    async def _client(self) -> tuple[Client, asyncio.Task[str]]:
        """Returns the client, connected if necessary, and the task that owns its connection."""
        if self._is_closed:  # nobody would close another one
            raise self._server.error("it was closed while a worker used it")
        if not self.is_open:
            self._ready, self._stop = asyncio.get_running_loop().create_future(), asyncio.Event()
            # In a context of its own, because it outlives the run that opens it.
            self._owner = asyncio.create_task(self._own(self._ready, self._stop), context=Context())
        ready, owner = self._ready, self._owner
        assert ready is not None
        assert owner is not None
        await asyncio.wait([ready])  # a waiter that is cancelled does not cancel it for the others
        client = ready.result()
        if isinstance(client, str):
            raise self._server.error(client)
        return client, owner

    async def _own(self, ready: asyncio.Future[Client | str], stop: asyncio.Event) -> str:
        """Opens the connection, keeps it until `stop`, and closes it; returns the error that ended it, if any."""
        with ExitStack() as files:
            if self._server.command:
                self._stderr = files.enter_context(StderrTail())
            try:
                async with AsyncExitStack() as stack:
                    async with asyncio.timeout(CONNECT_TIMEOUT):
                        client = await stack.enter_async_context(await self._open(stack))
                    ready.set_result(client)
                    await stop.wait()
            except Exception as error:  # it is the reason why calls fail
                reason = _reason(error)
                if not ready.done():
                    ready.set_result(self._with_hints(reason))
                return reason
            finally:
                if not ready.done():
                    ready.set_result("it was closed while it was being opened")
        return ""

    async def _open(self, stack: AsyncExitStack) -> Client:
        server = self._server
        if server.command:
            program, *arguments = server.command
            env = {name: value.get_secret_value() for name, value in server.env.items()}
            assert self._stderr is not None
            parameters = StdioServerParameters(
                command=program, args=arguments, env=env, encoding=bounded_lines.ENCODING
            )
            transport = stdio_client(parameters, self._stderr.file)
        else:
            headers = {name: value.get_secret_value() for name, value in server.headers.items()}
            http = httpx2.AsyncClient(
                headers={**ACCEPTED_ENCODINGS, **headers},
                event_hooks=event_hooks(),
                # Later than the SDK's own timeouts, after which the connection can still be used.
                timeout=httpx2.Timeout(CONNECT_TIMEOUT, read=max(server.timeout, CONNECT_TIMEOUT) + CLOSE_TIMEOUT),
            )
            transport = streamable_http_client(server.url, http_client=await stack.enter_async_context(http))
        # Without a cache, a connection that was lost is noticed when tools are listed, before any of them has run.
        return Client(
            self._tool_lists.filtered(transport),
            cache=None,
            read_timeout_seconds=CONNECT_TIMEOUT,
            message_handler=self._count_invalid_messages,
        )

    async def _count_invalid_messages(self, message: object) -> None:
        self._invalid_messages += isinstance(message, Exception)

    def _discard(self) -> None:
        """Lets the owner close the connection in the background."""
        if self._owner is None:
            return
        owner, self._owner = self._owner, None
        self._stop.set()
        if self._ready is not None and not self._ready.done():
            owner.cancel()
        if not owner.done():
            self._closing.add(owner)
            owner.add_done_callback(self._closing.discard)

    # --------------------------------------------------------------------------------------- errors

    @asynccontextmanager
    async def _errors_as(
        self, error_type: Callable[[str], Exception], owner: asyncio.Task[str], seconds: float
    ) -> AsyncIterator[None]:
        """Raises the server's errors as `error_type`, and `ToolSourceError` for the lost connection of `owner`."""
        try:
            yield
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                await asyncio.wait([owner], timeout=REASON_TIMEOUT)
                reason = owner.result() if owner.done() and not owner.cancelled() else ""
                raise self._lost(reason or error.message, owner=owner) from None
            if error.code == REQUEST_TIMEOUT:
                raise error_type(self._with_invalid_messages(f"no result within {seconds:g} s")) from None
            raise error_type(self._quote(error)) from None
        except LOST as error:
            raise self._lost(_reason(error), owner=owner) from None
        except (ValidationError, RuntimeError, ValueError) as error:
            raise error_type(self._quote(error)) from None

    def _quote(self, error: Exception) -> str:
        return self._server.redact(_reason(error))

    def _lost(self, reason: str, *, owner: asyncio.Task[str]) -> ToolSourceError:
        """Discards the connection of `owner`, unless it was replaced by another one already."""
        error = self._server.error(self._with_hints(reason))
        if self._owner is owner:
            self._discard()
        return error

    def _with_hints(self, reason: str) -> str:
        """Adds the number of invalid messages and the last lines of a program's stderr."""
        text = self._stderr.text() if self._stderr else ""
        reason = self._with_invalid_messages(reason)
        return f"{reason}; the end of its stderr: {text}" if text else reason

    def _with_invalid_messages(self, reason: str) -> str:
        """Adds that there were invalid messages, such as a banner on stdout, one of which may have been the result."""
        count = self._invalid_messages
        return f"{reason}; {count} of its messages or lines broke the protocol" if count else reason


def _reason(error: BaseException) -> str:
    """Says why a connection failed, in one line; the SDK's task groups raise groups of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return f"no reply within {CONNECT_TIMEOUT:g} s"
    if isinstance(error, ValidationError):
        return f"its reply breaks the protocol: {describe_violation(error)}"
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"there is no program {str(error.filename)!r}; install it, or write its full path"
    return " ".join(str(error).split())[:MAX_ERROR_LENGTH] or type(error).__name__


def _text(result: CallToolResult) -> str:
    """Returns the text of a result: its parts, with notes in place of images and sounds, or else its JSON."""
    parts = []
    for part in result.content:
        match part:
            case TextContent():
                parts.append(part.text)
            case EmbeddedResource(resource=TextResourceContents() as resource):
                parts.append(resource.text)
            case ResourceLink():
                parts.append(f"[resource {part.uri}]")
            case _:
                parts.append(f"[{part.type} not shown]")
    if not parts and result.structured_content is not None:
        return to_json(result.structured_content).decode()
    return "\n".join(parts)
