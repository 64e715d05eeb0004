"""Agents, workflows and chat engines of LlamaIndex as models of the core.

Each call is independent: an agent or workflow starts with a new context, and a chat engine's own memory is neither read
nor changed. Replies come in one piece, because the streams of agents also contain text written before tool calls.
"""

from __future__ import annotations

import copy
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from llama_index.core.agent.workflow import AgentWorkflow, ToolCallResult
from llama_index.core.agent.workflow.base_agent import (
    DEFAULT_AGENT_DESCRIPTION,
    DEFAULT_AGENT_NAME,
    BaseWorkflowAgent,
)
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.schema import NodeWithScore
from llama_index.core.workflow import InputRequiredEvent, StartEvent, Workflow
from typing_extensions import override

from llama_index.llms.conductor.messages import chat_message
from rl_conductor import Price, Request, Usage
from rl_conductor.errors import ConfigError, ModelError, PausedError
from rl_conductor.integration import call_async_or_sync, describe_no_reply, priced, prompt_in

from .errors import translate_errors
from .results import text_of_result
from .sources import nodes_of_result
from .task_model import TaskModel, TaskResult

W = TypeVar("W", bound=Workflow)


class WorkflowModel(TaskModel[W]):
    """A workflow. One field of its start event takes the worker's whole prompt; its result is the reply."""

    def __init__(
        self, workflow: W, *, input_field: str | None = None, name: str = "workflow", price: Price | None = None
    ) -> None:
        """Wraps a workflow as a model.

        Args:
            workflow: the workflow.
            input_field: the field of its start event; by default the only one, or the only required one.
            name: its name in traces.
            price: the price of a run; `None` leaves it unpriced.

        Raises:
            ConfigError: the start event does not show which field takes the prompt.
        """
        super().__init__(workflow, name=name, price=price)
        self._input_field = input_field or _input_field(workflow)

    @property
    def description(self) -> str:
        """The docstring of the workflow's class."""
        return type(self.source).__doc__ or ""

    @override
    async def run_task(self, request: Request) -> TaskResult:
        return await self._run(**{self._input_field: prompt_in(request.messages)})

    async def _run(self, **inputs: Any) -> TaskResult:
        with translate_errors(self.name, self.source):
            handler = self.source.run(**inputs)
            nodes: list[NodeWithScore] = []
            try:
                async with aclosing(handler.stream_events()) as events:
                    async for event in events:
                        if isinstance(event, InputRequiredEvent):
                            raise PausedError(
                                f"{self.name} asks for human input, and nobody can answer", model=self.name
                            )
                        if isinstance(event, ToolCallResult):
                            nodes += nodes_of_result(event.tool_output.raw_output)
                result = await handler
            finally:
                if not handler.is_done():
                    await handler.cancel_run()
            nodes += nodes_of_result(result)
            text = None if result is None else text_of_result(result)
            if text is None:
                usage = priced(Usage(), self.price)
                raise ModelError(describe_no_reply(result, self.name), model=self.name, usage=usage)
            return TaskResult(text, tuple(nodes))


class AgentModel(WorkflowModel[BaseWorkflowAgent | AgentWorkflow]):
    """An agent or an `AgentWorkflow`. It reads the conversation, and the worker's prompt as the last message."""

    def __init__(
        self, agent: BaseWorkflowAgent | AgentWorkflow, *, name: str = "agent", price: Price | None = None
    ) -> None:
        """`price` is the price of a run; `None` leaves it unpriced."""
        super().__init__(agent, input_field="user_msg", name=name, price=price)

    @property
    def description(self) -> str:
        """The description of the agent, or of all agents of the workflow."""
        if isinstance(self.source, AgentWorkflow):
            described = [agent for agent in self.source.agents.values() if _own_description(agent)]
            return "; ".join(f"{agent.name}: {_own_description(agent)}" for agent in described)
        return _own_description(self.source)

    @override
    async def run_task(self, request: Request) -> TaskResult:
        *history, prompt = map(chat_message, request.messages)
        return await self._run(user_msg=prompt, chat_history=history)


class ChatEngineModel(TaskModel[BaseChatEngine]):
    """A chat engine. The conversation is its chat history, and the worker's prompt its message."""

    def __init__(self, engine: BaseChatEngine, *, name: str = "chat-engine", price: Price | None = None) -> None:
        """`price` is the price of a message; `None` leaves it unpriced."""
        super().__init__(engine, name=name, price=price)

    @override
    async def run_task(self, request: Request) -> TaskResult:
        history = [chat_message(message) for message in request.messages[:-1]]
        prompt = prompt_in(request.messages)
        engine = _with_memory(self.source, history)
        with translate_errors(self.name, self.source):
            response: Any = await call_async_or_sync(
                partial(engine.achat, prompt, history), partial(engine.chat, prompt, history)
            )
        return TaskResult(response.response, tuple(response.source_nodes), response.metadata or {})


def agent_name(workflow: Workflow) -> str:
    """The own name of an agent or workflow.

    Raises:
        ConfigError: it has no name of its own.
    """
    if isinstance(workflow, AgentWorkflow):
        return workflow.root_agent
    if isinstance(workflow, BaseWorkflowAgent):
        if workflow.name == DEFAULT_AGENT_NAME:
            raise ConfigError("an agent in `workers` has no name; write {'name': agent, ...}, or name the agent")
        return workflow.name
    return type(workflow).__name__


def _own_description(agent: BaseWorkflowAgent) -> str:
    return "" if agent.description == DEFAULT_AGENT_DESCRIPTION else agent.description


def _input_field(workflow: Workflow) -> str:
    start_event = workflow.start_event_class
    fields = start_event.model_fields
    required = [name for name, field in fields.items() if field.is_required()]
    candidates = required or list(fields)
    if len(candidates) == 1:
        return candidates[0]
    wrong = f"has {len(candidates)} fields" if candidates else "declares no fields"
    if start_event is StartEvent:
        wrong = "is a plain StartEvent"
    raise ConfigError(
        f"the start event of {type(workflow).__name__} {wrong}, so the prompt could go anywhere; "
        "write WorkflowModel(workflow, input_field='...')"
    )


def _with_memory(engine: BaseChatEngine, history: list[ChatMessage]) -> BaseChatEngine:
    """Copies a chat engine, with the conversation as its only memory: concurrent calls must not share one."""
    engine = copy.copy(engine)
    fields = vars(engine)
    if "_memory" in fields:
        limit = getattr(fields["_memory"], "token_limit", None)
        fields["_memory"] = ChatMemoryBuffer.from_defaults(chat_history=list(history), token_limit=limit)
    return engine
