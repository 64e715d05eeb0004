"""`ToolLoopModel`: a model with tools that are run on its behalf, until it replies with text."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rl_conductor.agents.delegating import BaseModelSession
from rl_conductor.agents.tool import MAX_RESULT_CHARS, ToolError, ToolSourceError, WorkerTool
from rl_conductor.agents.toolset import AnyTool, Toolset
from rl_conductor.calls.scope import current_scope
from rl_conductor.errors import ConfigError, ModelError, ScriptError
from rl_conductor.models.base import Capabilities, Model, OnePieceModel, WrapperModel
from rl_conductor.models.foreign_errors import FOREIGN_ERRORS
from rl_conductor.models.redaction import MAX_SEARCHED_CHARS, environment_secrets, find_secrets, redact_secrets
from rl_conductor.models.replies.checks import checked
from rl_conductor.models.vendor_errors import MAX_ERROR_LENGTH
from rl_conductor.text.truncation import truncate_middle
from rl_conductor.trace.trace import ToolUse
from rl_conductor.types import Completion, Message, Request, ToolCall

MAX_TOOL_ROUNDS = 8
"""Default maximum number of times that tools are run for one reply."""
MAX_CALLS_PER_ROUND = 16
"""Maximum number of tool calls that are run from one message of the model."""
CLEANUP_SECONDS = 1.0
"""Maximum time that interrupted tools get to end, so that their uses are recorded."""
CALL_RETRIES = 2
"""Maximum number of retries of each call of the model. The loop as a whole is not retried, because tools may have side
effects."""


class ToolLoopModel(WrapperModel, OnePieceModel):
    """Offers tools to a model, runs the ones that it calls, and returns its final reply with the usage of all calls.

    A call of the caller's own tools ends the loop and is returned to the caller. If the caller has a tool of the same
    name, that one is offered instead. The reply comes in one piece, because text before a tool call is not part of it.
    """

    def __init__(
        self,
        model: Model,
        tools: Sequence[AnyTool],
        *,
        max_tool_rounds: int = MAX_TOOL_ROUNDS,
    ) -> None:
        """Adds tools to a model.

        Args:
            model: a model that can call tools.
            tools: Python functions, their names as `module:function`, or MCP servers.
            max_tool_rounds: how often tools are run for one reply; then the model has to reply without them.

        Raises:
            ConfigError: the model can't call tools, a tool is invalid, or `max_tool_rounds` is less than 1.
        """
        super().__init__(model)
        if not model.capabilities.tools:
            raise ConfigError(f"{model.name} can't call tools; leave out tools=... or choose another model")
        if max_tool_rounds < 1:
            raise ConfigError(f"max_tool_rounds={max_tool_rounds} allows no tool call; write 1 or more")
        self.tools = Toolset.of(tools)
        self.max_tool_rounds = max_tool_rounds

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the model, which makes several calls for one reply."""
        return self.model.capabilities.model_copy(update={"delegates": True, "reasoning_start": "outside"})

    @property
    def description(self) -> str:
        """The model's own description, if it has one, and the names of the tools and servers; the planner reads it."""
        own = str(getattr(self.model, "description", ""))
        return f"{own}; {self.tools.description}" if own else self.tools.description

    async def complete(self, request: Request) -> Completion:
        """Returns the reply after the last tool call.

        Raises:
            ModelError: a call of the model failed, or a server of tools can't be used; not retryable, because tools may
                have side effects.
        """
        session = BaseModelSession(self.model, request, retries=CALL_RETRIES)
        try:
            return await _Loop(self, session, await self.tools.list_tools()).run()
        except ModelError as error:
            error.retryable = False
            raise
        finally:
            session.report()

    async def aclose(self) -> None:
        """Closes the model and the connections to servers of tools."""
        try:
            await self.tools.aclose()
        finally:
            await super().aclose()


class _Loop:
    """The calls of the model and of its tools for one reply."""

    def __init__(self, model: ToolLoopModel, session: BaseModelSession, tools: Mapping[str, WorkerTool]) -> None:
        request = session.request
        callers_tools = {tool.name for tool in request.tools}
        self.session, self.callers_request = session, request
        self.max_rounds = model.max_tool_rounds
        self.tools = {name: tool for name, tool in tools.items() if name not in callers_tools}
        self.lost: ToolSourceError | None = None
        """The error of a server that was lost while a tool ran; it ends the loop."""
        self.secrets = find_secrets((model.model, model.tools.tools)) | environment_secrets()
        definitions = (*(tool.definition for tool in self.tools.values()), *request.tools)
        choice = request.tool_choice if request.tools else "auto"
        self.request = request.model_copy(update={"tools": definitions, "tool_choice": choice})

    async def run(self) -> Completion:
        """Calls the model until it replies without calling one of its own tools."""
        for _ in range(self.max_rounds):
            completion = await self.session.complete(self.request)
            calls = completion.message.tool_calls
            own_calls = [call for call in calls if call.name in self.tools]
            if not own_calls or len(own_calls) < len(calls):  # the caller runs the caller's tools
                return self._reply(completion)
            results = await self._run_tools(own_calls)
            messages = (*self.request.messages, completion.message, *results)
            self.request = self.request.model_copy(update={"messages": messages})
        # Some vendors reject tool calls in the conversation unless the request still lists the tools.
        return self._reply(await self.session.complete(self.request.model_copy(update={"tool_choice": "none"})))

    def _reply(self, completion: Completion) -> Completion:
        """Removes calls of own tools, which nobody else can run, and adds up the usage."""
        called = completion.message.tool_calls
        calls = tuple(call for call in called if call.name not in self.tools)
        update: dict[str, Any] = {
            "message": completion.message.model_copy(update={"tool_calls": calls}),
            "usage": self.session.usage,
            "dropped_calls": len(called) - len(calls),
        }
        if completion.finish_reason == "tool_calls" and not calls:
            update["finish_reason"] = "stop"
        return checked(completion.model_copy(update=update), self.callers_request)

    # ------------------------------------------------------------------------------------ tools

    async def _run_tools(self, calls: Sequence[ToolCall]) -> list[Message]:
        """Runs the calls of one message concurrently and returns their results in order."""
        outer = current_scope.get()
        # Conductors inside of tools spend from the run's budget; their usage is added to the reply's.
        scope = replace(outer, reservation=None, nested_usage=self.session.other_usage, slot=None)
        token, uses = current_scope.set(scope), dict[int, ToolUse]()
        tasks = [asyncio.create_task(self._run_tool(call, index, uses)) for index, call in enumerate(calls)]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=CLEANUP_SECONDS)
            raise
        finally:
            current_scope.reset(token)
            if outer.nested is not None:
                outer.nested.add([uses[index] for index in sorted(uses)], self.session.run.began)
        if self.lost is not None:
            raise self.lost
        return [
            Message.tool(call.id, uses[index].result, is_error=uses[index].is_error) for index, call in enumerate(calls)
        ]

    async def _run_tool(self, call: ToolCall, index: int, uses: dict[int, ToolUse]) -> None:
        """Runs a tool and records its use, also if it is interrupted: it may have had side effects."""
        started = self.session.run.elapsed()
        result, is_error = "interrupted", True
        try:
            result, is_error = await self._result(call, index)
        finally:
            uses[index] = ToolUse(
                name=call.name,
                arguments=call.arguments,
                result=truncate_middle(result, MAX_RESULT_CHARS) or "(no output)",
                is_error=is_error,
                started=started,
                seconds=self.session.run.elapsed() - started,
            )

    async def _result(self, call: ToolCall, index: int) -> tuple[str, bool]:
        """Returns the result of one tool call, or the error as text for the model."""
        if index >= MAX_CALLS_PER_ROUND:
            return f"error: at most {MAX_CALLS_PER_ROUND} tools can be called at once; call this one again", True
        try:
            return await self.tools[call.name].run(call.arguments), False
        except ToolSourceError as error:
            self.lost = error
            return f"error: {error}"[:MAX_ERROR_LENGTH], True
        except ToolError as error:
            return f"error: {error}"[:MAX_ERROR_LENGTH], True
        except ScriptError:
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return "error: CancelledError, although nobody cancelled the call", True
        except FOREIGN_ERRORS as error:  # any exception of a user's function goes back to the model
            text = redact_secrets(str(error)[:MAX_SEARCHED_CHARS], self.secrets)
            return f"error: {type(error).__name__}: {text}"[:MAX_ERROR_LENGTH], True
