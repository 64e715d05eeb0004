"""`Conductor`: the open RL Conductor as a LlamaIndex LLM. It holds no orchestration: the core plans and runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from contextvars import Context, copy_context
from dataclasses import replace
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
from pydantic import BaseModel, PrivateAttr, field_serializer
from typing_extensions import override

import rl_conductor
from rl_conductor import Event, Limits, Model, Planner, Policy, Request, Sampling, Trace, Worker, WorkerPool
from rl_conductor._internal.streams import callback_to_async_iterator
from rl_conductor._internal.sync import iterate_sync, run_sync
from rl_conductor.config.profiles import ProfileName
from rl_conductor.errors import ConfigError
from rl_conductor.trace.events import AnswerDelta
from rl_conductor.workflow.workflow import AccessMode

from .instrumentation import Report, observed
from .lookups import Lookup
from .messages import with_one_call
from .requests import core_request
from .responses import answer, piece, tool_selections
from .structure import Structuring
from .workers import AnyWorker, AnyWorkers, context_window, described, found_of, named


class Conductor(Structuring):
    """A language model that answers by writing a workflow over other models and running it.

    Examples:
        `pip install llama-index-llms-conductor`

        ```python
        from llama_index.core import Settings
        from llama_index.llms.conductor import Conductor

        Settings.llm = Conductor()  # vendors' keys, a local server, or tiny embedded models
        Settings.llm = Conductor(["openai:gpt-6-sol", "anthropic:claude-haiku-5-5"])
        ```
    """

    workers: Any = None
    """Workers of any kind, by name or in a list; `None` takes what this machine offers."""
    planner: Any = None
    """Who plans: `provider:model`, a LlamaIndex LLM or the core's `Planner`; by default the first worker that can."""
    policy: Policy | None = None
    limits: Limits | None = None
    profile: ProfileName | None = None
    """A balance of quality against time."""
    access: AccessMode | None = None
    """Whether a step reads all earlier steps or none, or any of them; by default as a pool file says, else all."""
    temperature: float | None = None
    max_tokens: int | None = None
    """Most tokens of the answer."""
    context_window: int | None = None
    """Tokens that a final worker can read and write; by default the smallest that is known of any language model."""

    _core: rl_conductor.Conductor = PrivateAttr()
    _pool: WorkerPool = PrivateAttr()
    _trace: Trace | None = PrivateAttr(default=None)

    def __init__(
        self,
        workers: AnyWorkers | None = None,
        *,
        planner: str | LLM | Model | Planner | None = None,
        policy: Policy | None = None,
        limits: Limits | None = None,
        profile: ProfileName | None = None,
        access: AccessMode | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        context_window: int | None = None,
        **options: Any,
    ) -> None:
        """Set up a conductor from its fields and those of every LlamaIndex LLM, such as `callback_manager`.

        Raises:
            ConfigError: a worker or planner can't work; the message says what to write instead.
            PolicyError: the policy lets no workflow run.
        """
        unknown = options.keys() - FunctionCallingLLM.model_fields.keys()
        if unknown:
            raise ConfigError(f"a Conductor takes no {', '.join(sorted(unknown))}; it takes {', '.join(OPTIONS)}")
        super().__init__(
            workers=None if workers is None else named(workers),
            planner=planner,
            policy=policy,
            limits=limits,
            profile=profile,
            access=access,
            temperature=temperature,
            max_tokens=max_tokens,
            context_window=context_window,
            **options,
        )
        found = found_of(self.workers, self.planner)
        self._pool = found.pool
        self._core = rl_conductor.Conductor.from_discovered(
            replace(observed(found), access=self.access or found.access),
            profile=self.profile,
            policy=self.policy,
            limits=self.limits,
        )

    # -------------------------------------------------------------------------------- what it is

    @classmethod
    def class_name(cls) -> str:
        """Its name in serialised form."""
        return "Conductor"

    @property
    def metadata(self) -> LLMMetadata:
        """What LlamaIndex asks of a model: the least that every worker guarantees who may give the answer."""
        final = self._final_workers()
        readers = [worker for worker in final if not isinstance(worker.model, Lookup)] or final
        return LLMMetadata(
            context_window=self.context_window or min(map(context_window, readers)),
            num_output=self.max_tokens or DEFAULT_NUM_OUTPUTS,
            is_chat_model=True,
            is_function_calling_model=any(worker.model.capabilities.tools for worker in final),
            model_name=f"conductor-{self.profile}" if self.profile else "conductor",
        )

    @property
    def conductor(self) -> rl_conductor.Conductor:
        """The core's Conductor at work; it serves any other use as well."""
        return self._core

    @property
    def sampling(self) -> Sampling:
        """What it asks of the worker that gives the answer, unless a call asks for something else."""
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens)

    @property
    def trace(self) -> Trace | None:
        """Everything that happened in the run that ended last; `None` before the first has ended."""
        return self._trace

    @override
    def _final_workers(self) -> list[Worker]:
        space = self._core.policy.space(self._pool.cards, max_steps=self._core.limits.steps)
        return [self._pool[name] for name in space.final_workers]

    # -------------------------------------------------------------------------------- asking it

    @override
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """The answer to a conversation."""
        request, report = self._asked(messages, kwargs)
        if self.rate_limiter is not None:
            await self.rate_limiter.async_acquire()
        with report.told():
            try:
                trace = await self._core.run(request, on_event=report.hear)
            finally:
                self._trace = report.trace or self._trace
        return answer(trace)

    @override
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        """The answer to a conversation, as the final worker writes it; closing the iterator cancels the run."""
        request, report = self._asked(messages, kwargs)
        return self._stream(request, report, copy_context())

    async def _stream(self, request: Request, report: Report, context: Context) -> AsyncGenerator[ChatResponse, None]:
        if self.rate_limiter is not None:
            await self.rate_limiter.async_acquire()
        said = ""
        with report.told():
            try:
                async with aclosing(self._pieces(request, report, context)) as pieces:
                    async for delta in pieces:
                        said += delta
                        response = piece(said, delta)
                        report.progress(response)
                        yield response
            finally:
                self._trace = report.trace or self._trace
            if report.trace is not None:
                yield answer(report.trace, delta="")

    def _pieces(self, request: Request, report: Report, context: Context) -> AsyncGenerator[str, None]:
        """The answer's text as it is written, by a run in `context`: its spans belong to the call."""

        def run(tell: Callable[[str], None]) -> Coroutine[Any, Any, Trace]:
            def hear(event: Event) -> None:
                report.hear(event)
                if isinstance(event, AnswerDelta):
                    tell(event.text)

            return self._core.run(request, on_event=hear, stream=True)

        return callback_to_async_iterator(run, context=context)

    @override
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """The answer to a conversation."""
        return run_sync(self.achat(messages, **kwargs))

    @override
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """The answer to a conversation, as the final worker writes it; closing the iterator cancels the run."""
        request, report = self._asked(messages, kwargs)
        return iterate_sync(self._stream(request, report, copy_context()))

    @override
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """The answer to a prompt."""
        return await achat_to_completion_decorator(self.achat)(prompt, **kwargs)

    @override
    async def astream_complete(
        self,
        prompt: str,
        formatted: bool = False,
        **kwargs: Any,
    ) -> CompletionResponseAsyncGen:
        """The answer to a prompt, as the final worker writes it."""
        return await astream_chat_to_completion_decorator(self.astream_chat)(prompt, **kwargs)

    @override
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """The answer to a prompt."""
        return chat_to_completion_decorator(self.chat)(prompt, **kwargs)

    @override
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """The answer to a prompt, as the final worker writes it."""
        return stream_chat_to_completion_decorator(self.stream_chat)(prompt, **kwargs)

    def _asked(self, messages: Sequence[ChatMessage], keywords: dict[str, Any]) -> tuple[Request, Report]:
        request = core_request(messages, keywords, defaults=self.sampling)
        return request, Report(self, messages, keywords, active_span_id.get())

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
        **kwargs: Any,
    ) -> dict[str, Any]:
        if tools and not self.metadata.is_function_calling_model:
            who = ", ".join(worker.name for worker in self._final_workers())
            raise ConfigError(f"no worker that may answer can call tools ({who}); add one that can")
        messages = list(chat_history or ())
        if user_msg is not None:
            messages.append(ChatMessage(content=user_msg) if isinstance(user_msg, str) else user_msg)
        return {
            "messages": messages,
            "tools": [tool.metadata.to_openai_tool(skip_length_check=True) for tool in tools],
            "tool_choice": tool_choice or ("required" if tool_required else "auto"),
            "parallel_tool_calls": allow_parallel_tool_calls,
            **kwargs,
        }

    @override
    def _validate_chat_with_tools_response(
        self, response: ChatResponse, tools: Sequence[BaseTool], allow_parallel_tool_calls: bool = False, **_: Any
    ) -> ChatResponse:
        """The response with one call at most where one was asked for: not every worker heeds that."""
        if allow_parallel_tool_calls:
            return response
        return response.model_copy(update={"message": with_one_call(response.message)})

    @override
    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **_: Any
    ) -> list[ToolSelection]:
        """The tool calls of an answer.

        Raises:
            ValueError: there is none, and `error_on_no_tool_call` is set.
        """
        found = tool_selections(response)
        if not found and error_on_no_tool_call:
            raise ValueError(f"Expected at least one tool call, but got {len(found)} tool calls.")
        return found

    # ------------------------------------------------------------------------------ serialised form

    @field_serializer("workers")
    def _workers_described(self, workers: dict[str, AnyWorker] | None) -> dict[str, Any] | None:
        return None if workers is None else {name: described(worker) for name, worker in workers.items()}

    @field_serializer("planner")
    def _planner_described(self, planner: object) -> Any:
        return described(planner)

    @field_serializer("policy", "limits")
    def _plain(self, value: BaseModel | None) -> dict[str, Any] | None:
        return None if value is None else value.model_dump(mode="json")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled with its workers as they are; LlamaIndex's own way leaves out, unasked, what can't be."""
        return type(self).from_dict, ({**self.to_dict(), "workers": self.workers, "planner": self.planner},)


OPTIONS = tuple(name for name in Conductor.model_fields if name not in FunctionCallingLLM.model_fields)
