"""`CallDefaults`: the settings of a `ChatConductor` that also apply where its Conductor is used without it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from langchain_core.callbacks import Callbacks
from langchain_core.rate_limiters import BaseRateLimiter
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.runnables.config import merge_configs, var_child_runnable_config
from pydantic import BaseModel, BeforeValidator, Field

from rl_conductor.types import Effort, Request, Sampling

SAMPLING_NAMES = {"reasoning_effort": "effort"}
"""Options of calls that `Sampling` names differently."""
StopSequences = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
"""Stop sequences; a text is a single one, as in OpenAI's and LangChain's own models."""


class AnswerOptions(BaseModel):
    """Options of a call, which are also settings of a `ChatConductor` as the defaults of all its calls."""

    temperature: float | None = None
    """Sampling temperature of the worker that gives the answer."""
    top_p: float | None = None
    """The answer is sampled from the most probable tokens with this share of the probability, 0 to 1."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of the answer, reasoning included."""
    seed: int | None = None
    """Seed of the answer's sampling, for vendors that support one."""
    stop: StopSequences | None = None
    """Texts that end the answer."""
    reasoning_effort: Effort | None = None
    """How long the worker that gives the answer may think."""
    timeout: float | None = Field(default=None, gt=0)
    """Seconds for the whole run."""

    @property
    def sampling(self) -> Sampling:
        """The sampling parameters of the worker that gives the answer."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_tokens,
            seed=self.seed,
            stop=tuple(self.stop or ()),
            effort=self.reasoning_effort,
        )


CALL_SETTINGS = tuple(AnswerOptions.model_fields)
"""Options of calls that `CallDefaults` may contain."""


@dataclass(frozen=True)
class CallDefaults:
    """Settings of a `ChatConductor` for graph nodes, runnables and nested conductors.

    There is no run of the chat model itself then; so its callbacks get the runs of all calls that its Conductor makes.
    """

    sampling: Sampling = field(default_factory=Sampling)
    timeout: float | None = None
    callbacks: Callbacks = None
    tags: list[str] | None = None
    metadata: dict[str, Any] | None = None
    stream_drafts: bool = False
    """Whether handlers get the tokens of the planner and of all workers."""
    rate_limiter: BaseRateLimiter | None = None

    def merged(self, options: Mapping[str, Any], config: RunnableConfig) -> CallDefaults:
        """Adds bound `options`, which take precedence, and the callbacks, tags and metadata of `config`."""
        sampling = {SAMPLING_NAMES.get(name, name): value for name, value in options.items() if name != "timeout"}
        if isinstance(stop := sampling.get("stop"), str):
            sampling["stop"] = [stop]
        own: RunnableConfig = {"callbacks": self.callbacks, "tags": self.tags or [], "metadata": self.metadata or {}}
        config = merge_configs(own, config)
        return replace(
            self,
            sampling=Sampling.model_validate({**self.sampling.model_dump(), **sampling}),
            timeout=options.get("timeout", self.timeout),
            callbacks=config.get("callbacks") or None,
            tags=config.get("tags") or None,
            metadata=config.get("metadata") or None,
        )

    def apply(self, request: Request) -> Request:
        """Fills in the sampling parameters that `request` leaves open, and the shorter timeout."""
        sampling = self.sampling.model_copy(update=request.sampling.model_dump(exclude_defaults=True))
        timeouts = [seconds for seconds in (request.timeout, self.timeout) if seconds is not None]
        return request.model_copy(update={"sampling": sampling, "timeout": min(timeouts, default=None)})

    async def wait_for_turn(self) -> None:
        """Waits until the rate limiter allows another run."""
        if self.rate_limiter is not None:
            await self.rate_limiter.aacquire()

    @contextmanager
    def in_context(self) -> Iterator[None]:
        """Adds callbacks, tags and metadata to the config of all calls in this block."""
        config: RunnableConfig = {}
        if self.callbacks:
            config["callbacks"] = self.callbacks
        if self.tags:
            config["tags"] = self.tags
        if self.metadata:
            config["metadata"] = self.metadata
        if not config:
            yield
            return
        token = var_child_runnable_config.set(merge_configs(ensure_config(), config))
        try:
            yield
        finally:
            var_child_runnable_config.reset(token)
