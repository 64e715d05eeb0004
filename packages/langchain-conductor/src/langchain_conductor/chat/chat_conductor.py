"""`ChatConductor`: the Conductor as a LangChain chat model. It only converts; the core does the work."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from math import ceil
from typing import Any, Self

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, BaseRunManager, CallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config
from langchain_core.runnables.config import set_config_context

from langchain_conductor.call_defaults import CALL_SETTINGS
from langchain_conductor.chat.cache_key import cache_key
from langchain_conductor.chat.call_options import CallOptions
from langchain_conductor.chat.run import ChatRun, combine_outputs
from langchain_conductor.chat.settings import ChatConductorSettings, reject_profile_name
from langchain_conductor.chat.structured_output import Method, Schema, response_format, unwrap_schema, with_parser
from langchain_conductor.conductors import model_name
from langchain_conductor.messages import PROVIDER
from langchain_conductor.pool import AnyWorker
from langchain_conductor.tools import AnyTool, core_tool, lc_tool
from langchain_conductor.tracing import prepare_run
from rl_conductor.errors import ConfigError
from rl_conductor.integration import allows_parallel_calls, iterate_sync, parse_tool_choice, run_sync

CHARACTERS_PER_TOKEN = 4
"""About right for English, whatever the model; LangChain's own estimate."""

WORKER_SETTINGS = frozenset({"api_key", "base_url", "organization", "openai_api_key", "openai_api_base", "http_client"})
"""Settings of other chat models that belong to the workers here."""

TRACER_OPTION = "ls_structured_output_format"
"""An option that informs tracers about structured output; LangChain removes it before the call."""


class ChatConductor(ChatConductorSettings):
    """A chat model that answers by planning a workflow over other models and running it.

    Without arguments it uses the models found on this machine: a pool file, vendors' API keys, a local server, or tiny
    embedded models. Settings can be assigned later, and a wrong value is refused at once.

    Examples:
        ```py
        from langchain_conductor import ChatConductor

        chat = ChatConductor({"strong": "openai:gpt-6-sol", "cheap": "openai:gpt-6-luna"})  # the first one also plans
        print(chat.invoke("Compare renting and buying a flat for 5 years.").text)
        ```
    """

    def __init__(self, workers: Mapping[str, AnyWorker] | None = None, **settings: Any) -> None:
        """Creates the model. `workers` may be positional; the fields of this class are the other settings.

        Raises:
            ConfigError: a worker or the planner can't be created, or a setting is wrong or belongs to the workers.
            PolicyError: the policy allows no workflow.
        """
        if isinstance(workers, str):
            example = workers if ":" in workers else f"openai:{workers}"
            raise ConfigError(f"workers is {workers!r}; write a dict, such as ChatConductor({{'worker': {example!r}}})")
        for name in WORKER_SETTINGS & settings.keys():
            example = f"ChatConductor({{'worker': ChatOpenAI(model=..., {name}=...)}})"
            raise ConfigError(
                f"ChatConductor has no setting {name!r}, which belongs to the workers; write {example}, or set the "
                "vendor's environment variables"
            )
        reject_profile_name(settings.get("profile"))
        super().__init__(workers=workers, **settings)

    # ------------------------------------------------------------------ tools and structured output

    def bind_tools(
        self,
        tools: Sequence[AnyTool],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        strict: bool | None = None,
        parallel_tool_calls: bool = True,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Offers tools to the worker that gives the answer; the turn with their results continues with that worker.

        Args:
            tools: functions, LangChain tools, pydantic classes or JSON schemas.
            tool_choice: `auto`, `any`, `none`, or the tool that must be called.
            strict: whether arguments must match the schema exactly.
            parallel_tool_calls: whether one reply may call several tools.
            kwargs: additional options of each call.

        Raises:
            ConfigError: an item is not a tool, or `tool_choice` is not one of them.
            PolicyError: no worker that may answer supports tools.
        """
        core_tools = [core_tool(tool, strict=strict) for tool in tools]
        return self._bind_checked(
            tools=[lc_tool(tool) for tool in core_tools],
            tool_choice=parse_tool_choice(tool_choice, core_tools),
            parallel_tool_calls=parallel_tool_calls and allows_parallel_calls(tool_choice),
            **kwargs,
        )

    def with_structured_output(
        self,
        schema: Schema,
        *,
        include_raw: bool = False,
        method: Method = "json_schema",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Returns answers as objects of `schema`.

        Args:
            schema: a pydantic class, a `TypedDict`, a JSON schema, or OpenAI's `{"name", "schema", "strict"}`.
            include_raw: return `{"raw", "parsed", "parsing_error"}`, with parsing errors as data.
            method: constrain the answer to the schema, request a tool call, or request any JSON.
            strict: whether the answer must match the schema exactly.
            kwargs: additional options of each call.

        Raises:
            ConfigError: the method does not exist, or `schema` is not a schema.
            PolicyError: no worker that may answer supports the method.
        """
        tracer_option: dict[str, Any] = {
            TRACER_OPTION: {"kwargs": {"method": method, "strict": strict}, "schema": schema}
        }
        if include_raw:
            kwargs["include_rejected"] = True
        schema, strict = unwrap_schema(schema, strict)
        if method == "function_calling":
            options = {"tool_choice": "any", "parallel_tool_calls": False, **tracer_option, **kwargs}
            chat = self.bind_tools([schema], strict=strict, **options)
        else:
            requested_format = response_format(schema, method, strict=strict)
            chat = self._bind_checked(response_format=requested_format, **tracer_option, **kwargs)
        return with_parser(chat, schema, method, include_raw=include_raw)

    def _bind_checked(self, **options: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """Binds options after checking that some workflow is allowed with them."""
        self._prepare((), None, {name: value for name, value in options.items() if name != TRACER_OPTION}).check()
        return self.bind(**options)

    # ------------------------------------------------------------- methods that LangChain calls

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return run_sync(self._prepare(messages, stop, kwargs).answer(run_manager))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return await self._prepare(messages, stop, kwargs).answer(run_manager)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        return iterate_sync(self._prepare(messages, stop, kwargs).chunks(run_manager or self._run))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        async with aclosing(self._prepare(messages, stop, kwargs).chunks(run_manager or self._run)) as chunks:
            async for chunk in chunks:
                yield chunk

    def _combine_llm_outputs(self, llm_outputs: list[dict[str, Any] | None]) -> dict[str, Any]:
        return combine_outputs(llm_outputs)

    # LangChain does not pass on the recursion limit and `configurable`, nor always the run to `_stream`; so the next
    # eight methods call a copy that knows them.

    def invoke(
        self,
        input: LanguageModelInput,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> AIMessage:
        """Answers a conversation, and returns the answer in one piece."""
        config = ensure_config(config)
        return super(ChatConductor, self._for_run(None, config)).invoke(input, config, **kwargs)

    async def ainvoke(
        self,
        input: LanguageModelInput,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> AIMessage:
        """Answers a conversation, and returns the answer in one piece."""
        config = ensure_config(config)
        return await super(ChatConductor, self._for_run(None, config)).ainvoke(input, config, **kwargs)

    def stream(
        self,
        input: LanguageModelInput,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Iterator[AIMessageChunk]:
        """Streams the final worker's tokens."""
        config, run = prepare_run(config)
        return super(ChatConductor, self._for_run(run, config)).stream(input, config, **kwargs)

    def astream(
        self,
        input: LanguageModelInput,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[AIMessageChunk]:
        """Streams the final worker's tokens."""
        config, run = prepare_run(config)
        return super(ChatConductor, self._for_run(run, config)).astream(input, config, **kwargs)

    def stream_events(
        self,
        input: LanguageModelInput,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Any:
        """Streams events; with `version="v3"`, the content blocks of the answer."""
        config = ensure_config(config)
        return super(ChatConductor, self._for_run(None, config)).stream_events(input, config, **kwargs)

    def astream_events(
        self,
        input: LanguageModelInput,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Any:
        """Streams events; with `version="v3"`, the content blocks of the answer."""
        config = ensure_config(config)
        return super(ChatConductor, self._for_run(None, config)).astream_events(input, config, **kwargs)

    def _generate_with_cache(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return super(ChatConductor, self._for_run(run_manager))._generate_with_cache(
            messages, stop, run_manager, **kwargs
        )

    async def _agenerate_with_cache(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return await super(ChatConductor, self._for_run(run_manager))._agenerate_with_cache(
            messages, stop, run_manager, **kwargs
        )

    # ------------------------------------------------------------------- identification and profile

    @property
    def _llm_type(self) -> str:
        return PROVIDER

    @property
    def _identifying_params(self) -> dict[str, Any]:
        config = self.conductor.config
        return {
            "model": self.model,
            "workers": {name: worker.model.name for name, worker in config.pool.items()},
            "planner": config.planner.model.name,
            **({"instructions": self.instructions} if self.instructions else {}),
            "policy": config.policy.model_dump(mode="json", exclude_defaults=True),
            "limits": config.limits.model_dump(mode="json", exclude_defaults=True),
            **({"guardrails": [repr(each) for each in config.guardrails]} if config.guardrails else {}),
            **self._default_options(),
        }

    def _default_options(self) -> dict[str, Any]:
        return {name: value for name in CALL_SETTINGS if (value := getattr(self, name)) is not None}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop or self.stop, **kwargs)
        params["ls_provider"] = PROVIDER
        params["ls_model_name"] = kwargs.get("model") or model_name(self.model)
        return params

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        """Builds the cache key from the conductor, the settings of the answer and those of the call."""
        settings = {**self._default_options(), "output_version": self.output_version}
        if stop is not None:
            settings["stop"] = stop
        with set_config_context(ensure_config(self._call_config)) as context:
            settings["conductor"] = context.run(cache_key, self.conductor)
        return str(sorted({**settings, **kwargs}.items()))

    def get_num_tokens(self, text: str) -> int:
        """Estimates the tokens of `text`, as workers have different tokenizers; `custom_get_token_ids` replaces it."""
        if self.custom_get_token_ids is not None:
            return super().get_num_tokens(text)
        return ceil(len(text) / CHARACTERS_PER_TOKEN)

    # ------------------------------------------------------------------------------- serialization

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """Returns `True`: `dumps` can write it if it can write its workers."""
        return True

    @classmethod
    def get_lc_namespace(cls) -> list[str]:
        """Returns the path in the ids that `dumps` writes: this class is imported from the package `chat`."""
        return cls.__module__.removesuffix(".chat_conductor").split(".")

    @property
    def lc_attributes(self) -> dict[str, Any]:
        """Fields that `dumps` writes as plain JSON."""
        values = {"policy": self.policy, "limits": self.limits}
        return {name: value.model_dump(mode="json") for name, value in values.items() if value is not None}

    def __getstate__(self) -> dict[Any, Any]:
        # Connections can't be pickled; the copy opens its own.
        return super().__getstate__() | {"__pydantic_private__": dict.fromkeys(self.__private_attributes__)}

    # ------------------------------------------------------------------------------------ one call

    def _prepare(self, messages: Sequence[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]) -> ChatRun:
        kwargs = {**kwargs, "stop": stop} if stop is not None else kwargs
        options = CallOptions.from_kwargs(
            {**self._default_options(), **{name: value for name, value in kwargs.items() if value is not None}}
        )
        conductor = self.conductor
        if options.model not in (None, self.model):
            conductor = self._build_conductor(options.model)
        request = options.to_request(messages)
        return ChatRun(
            conductor,
            request,
            options.policy,
            options.limits,
            stream_drafts=self.stream_drafts,
            call_config=self._call_config,
            include_rejected=options.include_rejected,
        )

    def _for_run(self, run: BaseRunManager | None, config: RunnableConfig | None = None) -> Self:
        copy = self.model_copy()
        copy._conductor, copy._run = self.conductor, run  # noqa: SLF001
        if config is not None:
            copy._call_config = RunnableConfig(  # noqa: SLF001
                recursion_limit=config["recursion_limit"], configurable=config["configurable"]
            )
        return copy
