"""`GuardrailMiddleware`: the guardrails as middleware of LangChain's agents, with any chat model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage
from pydantic import TypeAdapter, ValidationError
from typing_extensions import override

from langchain_conductor.messages import core_messages, lc_message
from rl_conductor.errors import ConfigError, GuardrailError
from rl_conductor.guardrails import Guardrail, GuardrailCheck, Stage, check_messages
from rl_conductor.integration import run_sync
from rl_conductor.types import Message, ToolCall

try:
    from langchain.agents.middleware import AgentMiddleware, AgentState, hook_config
except ImportError as missing:
    raise ConfigError(
        "the library 'langchain' is not installed: pip install 'langchain-conductor[agents]'"
    ) from missing

Update = dict[str, Any]
RETURNED = "Returning structured response."
"""Replaces LangChain's result of the tool call with a structured response, which quotes it."""


class GuardrailMiddleware(AgentMiddleware[Any, Any, Any]):
    """Checks the messages before each call of the agent's model, and the reply after it.

    What is redacted is replaced in the agent's state. Before a call, guardrails with the stage `input` check all
    messages, results of tools included; after it, those with `answer` check the reply and the structured response.
    The agent's `system_prompt` is not one of the messages. Tokens that the model streams are not held back; a
    `ChatConductor(guardrails=...)` does that.
    """

    def __init__(self, guardrails: Sequence[Guardrail], *, exit_behavior: Literal["error", "end"] = "error") -> None:
        """`exit_behavior` says whether a refusal raises `GuardrailError` or ends the agent with a message."""
        super().__init__()
        if exit_behavior not in ("error", "end"):
            raise ConfigError(f"exit_behavior is {exit_behavior!r}; write 'error' or 'end'")
        self.guardrails = tuple(guardrails)
        self.exit_behavior = exit_behavior
        self.tools: Sequence[Any] = ()

    @hook_config(can_jump_to=["end"])
    @override
    def before_model(self, state: AgentState[Any], runtime: Any) -> Update | None:
        """Checks all messages of the state before the model is called."""
        return run_sync(self._check("input", state["messages"]))

    @hook_config(can_jump_to=["end"])
    @override
    async def abefore_model(self, state: AgentState[Any], runtime: Any) -> Update | None:
        """Checks all messages of the state before the model is called."""
        return await self._check("input", state["messages"])

    @hook_config(can_jump_to=["end"])
    @override
    def after_model(self, state: AgentState[Any], runtime: Any) -> Update | None:
        """Checks the model's reply, and a structured response."""
        return run_sync(self._check_reply(state))

    @hook_config(can_jump_to=["end"])
    @override
    async def aafter_model(self, state: AgentState[Any], runtime: Any) -> Update | None:
        """Checks the model's reply, and a structured response."""
        return await self._check_reply(state)

    async def _check_reply(self, state: AgentState[Any]) -> Update | None:
        """Checks the last reply. If it changes, the structured response that was parsed from it changes as well."""
        messages, value = state["messages"], state.get("structured_response")
        size = max((index for index, message in enumerate(messages, 1) if isinstance(message, AIMessage)), default=0)
        update = await self._check("answer", messages[:size])
        if update is None or value is None:
            return update
        # Results after the reply are LangChain's own, which quote the structured response.
        quotes = messages[size:]
        removed = [RemoveMessage(id=str(message.id)) for message in quotes]
        if "jump_to" in update:
            return {**update, "messages": [*update["messages"], *removed], "structured_response": None}
        try:
            checked = await self._check_value(messages[:size], value)
        except GuardrailError as error:
            if self.exit_behavior == "error":
                raise
            refusal = self._refusal("answer", messages[:size], error)
            return {**refusal, "messages": [*refusal["messages"], *removed], "structured_response": None}
        unquoted = [message.model_copy(update={"content": RETURNED}) for message in quotes]
        return {"messages": [*update["messages"], *unquoted], "structured_response": checked}

    async def _check_value(self, messages: Sequence[BaseMessage], value: Any) -> Any:
        """Checks the strings in a structured response, one by one.

        Raises:
            GuardrailError: what the guardrails made of it no longer has its form.
        """
        schema = TypeAdapter(type(value))
        arguments = schema.dump_json(value, by_alias=True).decode()
        call = ToolCall(id="structured_response", name="structured_response", arguments=arguments)
        conversation = [*core_messages(messages[:-1]), Message.assistant(tool_calls=[call])]
        after = (await check_messages(self.guardrails, "answer", conversation))[-1]
        try:
            return schema.validate_json(after.tool_calls[0].arguments, by_alias=True, by_name=True)
        except (ValidationError, IndexError) as error:
            reason = "the structured response lost its form"
            check = GuardrailCheck(guardrail=type(self).__name__, stage="answer", outcome="failed", reason=reason)
            raise GuardrailError(check) from error

    async def _check(self, stage: Stage, messages: Sequence[BaseMessage]) -> Update | None:
        """Returns the messages that change; each takes the place of the one with its id."""
        before = core_messages(messages)
        try:
            after = await check_messages(self.guardrails, stage, before)
        except GuardrailError as error:
            if self.exit_behavior == "error":
                raise
            return self._refusal(stage, messages, error)
        changed = [
            _replaced(message, lc_message(new))
            for message, old, new in zip(messages, before, after, strict=True)
            if new != old
        ]
        return {"messages": changed} if changed else None

    def _refusal(self, stage: Stage, messages: Sequence[BaseMessage], error: GuardrailError) -> Update:
        """Ends the agent; a refused reply is replaced."""
        answer = AIMessage(
            f"I can't answer this: {error.reason}", response_metadata={"finish_reason": "content_filter"}
        )
        if stage == "answer":
            answer.id = messages[-1].id
        return {"messages": [answer], "jump_to": "end"}


def _replaced(message: BaseMessage, new: BaseMessage) -> BaseMessage:
    """Returns `new` with the id and metadata of `message`."""
    update: Update = {"id": message.id, "response_metadata": message.response_metadata}
    if isinstance(message, AIMessage):
        update["usage_metadata"] = message.usage_metadata
    return new.model_copy(update=update)
