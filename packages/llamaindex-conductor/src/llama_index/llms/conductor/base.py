"""`Conductor`: the RL Conductor as a LlamaIndex LLM. The core plans and runs; this module only converts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from contextvars import Context, copy_context
from typing import Any

from llama_index.core.base.llms.generic_utils import (
    achat_to_completion_decorator,
    astream_chat_to_completion_decorator,
    chat_to_completion_decorator,
    stream_chat_to_completion_decorator,
)
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
)
from llama_index.core.constants import DEFAULT_NUM_OUTPUTS
from llama_index.core.llms import LLM
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.tools import BaseTool
from llama_index_instrumentation.span import active_span_id
from pydantic import PrivateAttr
from typing_extensions import override

from rl_conductor import Event, Limits, Model, Planner, Policy, Request, Trace
from rl_conductor.errors import ConfigError
from rl_conductor.guardrails import Guardrail
from rl_conductor.integration import (
    AccessMode,
    LearnedSource,
    ProfileName,
    callback_to_async_iterator,
    iterate_sync,
    run_sync,
)
from rl_conductor.trace import AnswerDelta, ReasoningDelta
from rl_conductor.types import Delta

from .chat_requests import core_request
from .chat_responses import chunk_response, tool_selections, trace_response
from .instrumentation import CallReporter
from .messages import keep_first_call
from .models.task_model import TaskModel
from .settings import CORE_FIELDS, OPTIONS
from .structured_output import StructuredOutputLLM
from .workers import WorkersLike, context_window, max_output_tokens


class Conductor(StructuredOutputLLM):
    """An LLM that answers by planning a workflow over other models, indexes and agents, and running it.

    Without arguments it uses the models found on this machine: a pool file, vendors' API keys, a local server, or tiny
    embedded models. Settings can be assigned later, and a wrong value is refused at once.

    Examples:
        ```py
        from llama_index.core import Settings
        from llama_index.llms.conductor import Conductor

        Settings.llm = Conductor({"strong": "openai:gpt-6-sol", "cheap": "openai:gpt-6-luna"})
        print(Settings.llm.complete("Compare renting and buying a flat for 5 years."))
        ```
    """

    _trace: Trace | None = PrivateAttr(default=None)

    def __init__(
        self,
        workers: WorkersLike | None = None,
        *,
        planner: str | LLM | Model | Planner | None = None,
        conductor: LearnedSource | None = None,
        instructions: str = "",
        policy: Policy | None = None,
        limits: Limits | None = None,
        profile: ProfileName | None = None,
        access: AccessMode | None = None,
        guardrails: Sequence[Guardrail] | None = None,
        max_retries: int | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        context_window: int | None = None,
        **options: Any,
    ) -> None:
        """Creates a conductor from its fields and those of every LlamaIndex LLM, such as `callback_manager`.

        `conductor` is the folder of a learned conductor, or a conductor of the core.

        Raises:
            ConfigError: a worker or planner is unusable; the message says what to write instead.
            PolicyError: the policy allows no workflow.
        """
        unknown = options.keys() - FunctionCallingLLM.model_fields.keys()
        if unknown:
            raise ConfigError(f"unknown options: {', '.join(sorted(unknown))}; Conductor accepts {', '.join(OPTIONS)}")
        super().__init__(
            workers=workers,
            planner=planner,
            conductor=conductor,
            instructions=instructions,
            policy=policy,
            limits=limits,
            profile=profile,
            access=access,
            guardrails=guardrails,
            max_retries=max_retries,
            temperature=temperature,
            max_tokens=max_tokens,
            context_window=context_window,
            **options,
        )
        self._build_core(CORE_FIELDS)

    # -------------------------------------------------------------------------------- properties

    @classmethod
    def class_name(cls) -> str:
        return "Conductor"

    @property
    def metadata(self) -> LLMMetadata:
        """The limits and features that hold for every worker that may give the answer."""
        final = self._final_workers()
        readers = [worker for worker in final if not isinstance(worker.model, TaskModel)] or final
        return LLMMetadata(
            context_window=self.context_window or min(map(context_window, readers)),
            num_output=self.max_tokens
            or max(filter(None, map(max_output_tokens, readers)), default=DEFAULT_NUM_OUTPUTS),
            is_chat_model=True,
            is_function_calling_model=any(worker.model.capabilities.tools for worker in final),
            model_name=f"conductor-{self.profile}" if self.profile else "conductor",
        )

    @property
    def trace(self) -> Trace | None:
        """The trace of the run that ended last; `None` before the first one."""
        return self._trace

    # -------------------------------------------------------------------------------- calls

    @override
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Plans and runs a workflow for a conversation and returns the answer."""
        request, reporter = self._prepare_call(messages, kwargs)
        if self.rate_limiter is not None:
            await self.rate_limiter.async_acquire()
        with reporter.report_call():
            try:
                with reporter.count_inner_runs():
                    trace = await self._core.run(request, on_event=reporter.report_event)
            finally:
                self._trace = reporter.trace or self._trace
        return trace_response(trace)

    @override
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        """Streams the answer to a conversation as the final worker writes it; closing the stream cancels the run."""
        request, reporter = self._prepare_call(messages, kwargs)
        return self._stream(request, reporter, copy_context())

    async def _stream(
        self, request: Request, reporter: CallReporter, context: Context
    ) -> AsyncGenerator[ChatResponse, None]:
        if self.rate_limiter is not None:
            await self.rate_limiter.async_acquire()
        text = reasoning = ""
        with reporter.report_call():
            try:
                async with aclosing(self._deltas(request, reporter, context)) as deltas:
                    async for delta in deltas:
                        text += delta.text
                        reasoning += delta.reasoning
                        response = chunk_response(text, reasoning, delta)
                        reporter.report_chunk(response)
                        yield response
            finally:
                self._trace = reporter.trace or self._trace
            if reporter.trace is not None:
                yield trace_response(reporter.trace, delta="")

    def _deltas(self, request: Request, reporter: CallReporter, context: Context) -> AsyncGenerator[Delta, None]:
        """Streams the reasoning and the answer of a run in `context`, so that its spans are inside that of the call."""

        async def run(emit: Callable[[Delta], None]) -> Trace:
            def on_event(event: Event) -> None:
                reporter.report_event(event)
                if isinstance(event, ReasoningDelta):
                    emit(Delta(reasoning=event.text))
                elif isinstance(event, AnswerDelta):
                    emit(Delta(text=event.text))

            with reporter.count_inner_runs():
                return await self._core.run(request, on_event=on_event, stream=True)

        return callback_to_async_iterator(run, context=context)

    @override
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Plans and runs a workflow for a conversation and returns the answer."""
        return run_sync(self.achat(messages, **kwargs))

    @override
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Streams the answer to a conversation as the final worker writes it; closing the stream cancels the run."""
        request, reporter = self._prepare_call(messages, kwargs)
        return iterate_sync(self._stream(request, reporter, copy_context()))

    @override
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Plans and runs a workflow for a prompt and returns the answer."""
        return await achat_to_completion_decorator(self.achat)(prompt, **kwargs)

    @override
    async def astream_complete(
        self,
        prompt: str,
        formatted: bool = False,
        **kwargs: Any,
    ) -> CompletionResponseAsyncGen:
        """Streams the answer to a prompt as the final worker writes it."""
        return await astream_chat_to_completion_decorator(self.astream_chat)(prompt, **kwargs)

    @override
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Plans and runs a workflow for a prompt and returns the answer."""
        return chat_to_completion_decorator(self.chat)(prompt, **kwargs)

    @override
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """Streams the answer to a prompt as the final worker writes it."""
        return stream_chat_to_completion_decorator(self.stream_chat)(prompt, **kwargs)

    def _prepare_call(self, messages: Sequence[ChatMessage], keywords: dict[str, Any]) -> tuple[Request, CallReporter]:
        request = core_request(messages, keywords, defaults=self.sampling)
        return request, CallReporter(self, messages, keywords, active_span_id.get())

    # --------------------------------------------------------------------------------------- tools

    @override
    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        tool_choice: str | Mapping[str, Any] | None = None,
        streams_structured_output: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        if tools and not self.metadata.is_function_calling_model:
            names = ", ".join(worker.name for worker in self._final_workers())
            raise ConfigError(f"no worker that may give the answer supports tools ({names}); add one that does")
        messages = list(chat_history or ())
        if user_msg is not None:
            messages.append(ChatMessage(content=user_msg) if isinstance(user_msg, str) else user_msg)
        return {
            "messages": messages,
            "tools": [tool.metadata.to_openai_tool(skip_length_check=True) for tool in tools],
            "tool_choice": "required" if tool_required or streams_structured_output else tool_choice or "auto",
            "parallel_tool_calls": allow_parallel_tool_calls,
            **kwargs,
        }

    @override
    def _validate_chat_with_tools_response(
        self, response: ChatResponse, tools: Sequence[BaseTool], allow_parallel_tool_calls: bool = False, **_: Any
    ) -> ChatResponse:
        # Not every worker respects `parallel_tool_calls=False`.
        if allow_parallel_tool_calls:
            return response
        return response.model_copy(update={"message": keep_first_call(response.message)})

    @override
    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **_: Any
    ) -> list[ToolSelection]:
        """Returns the tool calls of a response.

        Raises:
            ValueError: there are none, and `error_on_no_tool_call` is set.
        """
        selections = tool_selections(response)
        if not selections and error_on_no_tool_call:
            raise ValueError(f"Expected at least one tool call, but got {len(selections)} tool calls.")
        return selections
