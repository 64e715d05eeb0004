"""`ChatConductor`: the Conductor as a LangChain chat model. It translates; what happens is the core's to decide."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from math import ceil
from typing import Any, Self

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, BaseRunManager, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput, ModelProfile
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from pydantic import ConfigDict, Field, PrivateAttr, SkipValidation, model_validator

from langchain_conductor.asked import Asked
from langchain_conductor.messages import NAME, AnyTool, core_tool, core_tool_choice, lc_tool
from langchain_conductor.models import ChatModel
from langchain_conductor.options import CallOptions
from langchain_conductor.pool import AnyModel, AnyWorker, conductor_of, found_of, named
from langchain_conductor.structured import Method, Schema, response_format, structured
from langchain_conductor.tracing import identified, unreported
from rl_conductor._internal.sync import iterate_sync, run_sync
from rl_conductor.conductor import Conductor
from rl_conductor.config.discovery import DiscoveredPool
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.worker import Worker
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy

DEFAULTS = ("temperature", "top_p", "max_tokens", "seed", "stop", "timeout")
"""The fields that each call asks for unless it says otherwise."""

CHARACTERS_A_TOKEN = 4
"""In English, more or less, whatever the model; LangChain itself estimates so too."""

FOR_TRACERS = "ls_structured_output_format"
"""An option of calls by which LangChain tells tracers of structured answers; it takes that out itself."""


class ChatConductor(BaseChatModel):
    """A chat model that answers by planning a workflow over other models and running it.

    Without arguments it works with what this machine offers: a pool file, vendors' keys, a local server, or tiny
    embedded models.

    Raises:
        ConfigError: a worker or the planner can't be made, or an option is wrong; the message says what to write.
        PolicyError: the policy lets no workflow run.
    """

    model_config = ConfigDict(extra="forbid")

    workers: SkipValidation[Mapping[str, AnyWorker]] | None = None
    """By name: LangChain chat models, other runnables (agents, graphs, chains), `provider:model`, core workers, or
    entries such as `{"model": agent, "description": "looks up prices"}`. The planner reads names and descriptions."""
    planner: SkipValidation[AnyModel | Planner] | None = None
    """Who writes the plans; else the one that was found, or the first worker that is no agent or chain."""
    model: str | None = None
    """`mini` or `ultra`; may be given as `profile`, and for one call as `model`."""
    policy: Policy | None = None
    limits: Limits | None = None
    rounds: int | None = Field(default=None, ge=1)
    """Most plans that are run one after the other, in place of `limits.rounds`."""
    max_retries: int = Field(default=2, ge=0)
    """Most repetitions of a worker's call that failed for a reason that may pass."""
    temperature: float | None = None
    """This and the next four are for the worker that gives the answer."""
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: list[str] | None = None
    timeout: float | None = None
    """Seconds until the whole run is given up."""
    streaming: bool = False
    """Whether `invoke` streams too, for handlers that want each token."""

    _found: DiscoveredPool | None = PrivateAttr(default=None)
    """Who plans and works."""
    _conductor: Conductor | None = PrivateAttr(default=None)
    _run: BaseRunManager | None = PrivateAttr(default=None)
    """Whose calls these are, where LangChain does not tell `_stream`."""

    @model_validator(mode="before")
    @classmethod
    def _profile_by_name(cls, given: Any) -> Any:
        """A `profile` given by name is ours; one given as facts is LangChain's."""
        if isinstance(given, dict) and isinstance(given.get("profile"), str):
            return {"model": given["profile"], **{name: given[name] for name in given if name != "profile"}}
        return given

    @model_validator(mode="after")
    def _can_work(self) -> Self:
        """Find mistakes now rather than at the first question."""
        assert self.conductor is not None
        return self

    @property
    def conductor(self) -> Conductor:
        """The Conductor at work; it serves any other use as well."""
        if self._conductor is None:
            self._conductor = self._in_profile(self.model)
        return self._conductor

    def _in_profile(self, profile: str | None) -> Conductor:
        self._found = self._found or found_of(self.workers, self.planner)
        return conductor_of(
            self._found,
            profile=profile,
            policy=self.policy,
            limits=self.limits,
            rounds=self.rounds,
            retries=self.max_retries,
        )

    # ----------------------------------------------------------------------------- what it offers

    def bind_tools(
        self,
        tools: Sequence[AnyTool],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        strict: bool | None = None,
        parallel_tool_calls: bool = True,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Offer tools to the worker that gives the answer; the turn with their results goes on with that worker.

        Args:
            tools: functions, LangChain tools, pydantic classes or JSON schemas.
            tool_choice: `auto`, `any`, `none`, or the tool that must be called.
            strict: hold the arguments to the schema strictly.
            parallel_tool_calls: whether one reply may call several.
            kwargs: further options of each call.

        Raises:
            ConfigError: one of these is no tool, or `tool_choice` none of them.
            PolicyError: no worker that may answer takes tools.
        """
        bound = [core_tool(tool, strict=strict) for tool in tools]
        return self._offering(
            tools=[lc_tool(tool) for tool in bound],
            tool_choice=core_tool_choice(tool_choice, bound),
            parallel_tool_calls=parallel_tool_calls,
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
        """Answers as objects of `schema`.

        Args:
            schema: a pydantic class, a `TypedDict` or a JSON schema.
            include_raw: give `{"raw", "parsed", "parsing_error"}`, and errors as data.
            method: hold the answer to the schema, ask for a tool call, or ask for any JSON.
            strict: hold it strictly.
            kwargs: further options of each call.

        Raises:
            ConfigError: there is no such method, or `schema` is none.
            PolicyError: no worker that may answer can be held to it.
        """
        told: dict[str, Any] = {FOR_TRACERS: {"kwargs": {"method": method, "strict": strict}, "schema": schema}}
        if method == "function_calling":
            asked = self.bind_tools([schema], tool_choice="any", strict=strict, **told, **kwargs)
        else:
            form = response_format(schema, method, strict=strict)
            asked = self._offering(response_format=form, **told, **kwargs)
        return structured(asked, schema, method, include_raw=include_raw)

    def _offering(self, **options: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """Calls with these options, once it is sure that some workflow may run for them."""
        self._asked((), None, {name: value for name, value in options.items() if name != FOR_TRACERS}).check()
        return self.bind(**options)

    # ------------------------------------------------------------------------ what LangChain calls

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return run_sync(self._asked(messages, stop, kwargs).answer(run_manager))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return await self._asked(messages, stop, kwargs).answer(run_manager)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        return iterate_sync(self._asked(messages, stop, kwargs).chunks(run_manager or self._run))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        async with aclosing(self._asked(messages, stop, kwargs).chunks(run_manager or self._run)) as chunks:
            async for chunk in chunks:
                yield chunk

    # LangChain does not tell `_stream` which run it serves; the next four see to it that a copy of this model knows.

    def stream(
        self,
        input: LanguageModelInput,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Iterator[AIMessageChunk]:
        """The answer as the final worker writes it."""
        config, run = identified(config)
        return super(ChatConductor, self._serving(run)).stream(input, config, **kwargs)

    def astream(
        self,
        input: LanguageModelInput,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[AIMessageChunk]:
        """The answer as the final worker writes it."""
        config, run = identified(config)
        return super(ChatConductor, self._serving(run)).astream(input, config, **kwargs)

    def _generate_with_cache(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return super(ChatConductor, self._serving(run_manager))._generate_with_cache(
            messages, stop, run_manager, **kwargs
        )

    async def _agenerate_with_cache(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return await super(ChatConductor, self._serving(run_manager))._agenerate_with_cache(
            messages, stop, run_manager, **kwargs
        )

    # ------------------------------------------------------------------------------ how it is known

    @property
    def _llm_type(self) -> str:
        return NAME

    @property
    def _identifying_params(self) -> dict[str, Any]:
        pool = self.conductor.pool
        return {
            "model": self.model,
            "workers": {name: worker.model.name for name, worker in pool.items()},
            "planner": self.conductor.planner.model.name,
            "policy": self.conductor.policy.model_dump(mode="json", exclude_defaults=True),
            "limits": self.conductor.limits.model_dump(mode="json", exclude_defaults=True),
            **self._defaults(),
        }

    def _defaults(self) -> dict[str, Any]:
        """What each call asks for unless it says otherwise."""
        return {name: value for name in DEFAULTS if (value := getattr(self, name)) is not None}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        told = super()._get_ls_params(stop or self.stop, **kwargs)
        told["ls_provider"] = NAME
        told["ls_model_name"] = kwargs.get("model") or named(self.model)
        return told

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        """The key of cached answers: who works and how, also where that can't be written down as JSON."""
        settings = {name: _settings(worker) for name, worker in self.conductor.pool.items()}
        return str(sorted({**self._identifying_params, "settings": settings, "stop": stop, **kwargs}.items()))

    def _resolve_model_profile(self) -> ModelProfile:
        can = self.conductor.capabilities
        return ModelProfile(
            name=named(self.model),
            text_inputs=True,
            text_outputs=True,
            image_inputs=can.images,
            pdf_inputs=can.files,
            audio_inputs=False,
            video_inputs=False,
            tool_calling=can.tools,
            tool_choice=can.tools,
            structured_output=can.json_schema,
        )

    def get_num_tokens(self, text: str) -> int:
        """About how many tokens `text` has; each worker has its own, so `custom_get_token_ids` says it exactly."""
        if self.custom_get_token_ids is not None:
            return super().get_num_tokens(text)
        return ceil(len(text) / CHARACTERS_A_TOKEN)

    # --------------------------------------------------------------------------- how it is stored

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """Whether `dumps` can write it: where its workers can."""
        return True

    @property
    def lc_attributes(self) -> dict[str, Any]:
        """What `dumps` writes as plain JSON."""
        values = {"policy": self.policy, "limits": self.limits}
        return {name: value.model_dump(mode="json") for name, value in values.items() if value is not None}

    def __getstate__(self) -> dict[Any, Any]:
        # Connections don't travel: whoever gets the copy opens its own.
        return super().__getstate__() | {"__pydantic_private__": dict.fromkeys(self.__private_attributes__)}

    # ------------------------------------------------------------------------------------ one call

    def _asked(self, messages: Sequence[BaseMessage], stop: list[str] | None, given: dict[str, Any]) -> Asked:
        told = {**given, "stop": stop} if stop is not None else given
        options = CallOptions.of({**self._defaults(), **{name: told[name] for name in told if told[name] is not None}})
        conductor = self.conductor
        if options.model not in (None, self.model):
            conductor = self._in_profile(options.model)
        return Asked(conductor, options.request(messages), options.policy, options.limits)

    def _serving(self, run: BaseRunManager | None) -> Self:
        copy = self.model_copy()
        copy._conductor, copy._run = self.conductor, run  # noqa: SLF001
        return copy


def _settings(worker: Worker) -> tuple[object, ...]:
    model = unreported(worker.model)
    return worker.card, worker.sampling, model.settings if isinstance(model, ChatModel) else None
