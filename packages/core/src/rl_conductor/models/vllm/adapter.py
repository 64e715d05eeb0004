"""vLLM, in process: many requests share one `AsyncLLM`, which batches them, and any number of LoRA adapters.

Models of the same checkpoint and engine options share one engine, which runs on an event loop of its own, so that
callers on different loops can use it. Written for vLLM 0.30 and newer; the comments name what older ones do otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import count
from pathlib import Path
from typing import Any

from rl_conductor.errors import (
    BadRequestError,
    BadResponseError,
    ConductorError,
    ConfigError,
    ModelError,
    RateLimitError,
)
from rl_conductor.models.base import collect
from rl_conductor.models.tool_emulation import Reader, form_with_tools
from rl_conductor.models.transformers.chat_template import ChatTemplate, require_able, require_room
from rl_conductor.models.transformers.token_stream import Feed, completed
from rl_conductor.types import (
    FREE,
    Completion,
    Delta,
    FinishReason,
    Grammar,
    Price,
    Request,
    ResponseFormat,
    Usage,
)

try:
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.exceptions import GracefulHTTPError, VLLMClientError
    from vllm.inputs import EngineInput, TokensPrompt
    from vllm.outputs import RequestOutput
    from vllm.platforms import current_platform
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams  # before 0.11: GuidedDecodingParams
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    from rl_conductor.models.images import images_of
    from rl_conductor.models.transformers.checkpoint import expected
    from rl_conductor.models.vllm.engine import DEFAULTS, Engine, lease, release
except ImportError as missing:
    raise ConfigError(f"vllm models need {missing.name}: pip install 'rl-conductor[vllm]'") from missing

FINISH: dict[str | None, FinishReason] = {"stop": "stop", "length": "length"}
_ids = count()


class VLLMModel:
    """A model in a vLLM engine of this process, started on first use and shut down when its last user is closed."""

    def __init__(
        self, source: str, *, lora: str | None = None, price: Price | None = FREE, **engine_options: Any
    ) -> None:
        """Start nothing yet.

        Args:
            source: a folder or a name on the hub.
            lora: a folder with a LoRA adapter. For the bare model to share the engine, give it `enable_lora=True`
                (not on a CPU).
            price: what a call is accounted as; your own hardware counts as free.
            engine_options: vLLM's engine arguments, such as `max_model_len` or `tensor_parallel_size`.

        Raises:
            ConfigError: vLLM is missing, or refuses the engine options.
        """
        self.name = f"vllm:{source}" if lora is None else f"vllm:{source}+{Path(lora).name}"
        self.price = price
        self._lora = lora
        lora_options = {} if lora is None else {"enable_lora": True}
        self._options = {"model": source} | DEFAULTS | lora_options | engine_options
        try:
            AsyncEngineArgs(**self._options)
        except (TypeError, ValueError) as wrong:
            raise ConfigError(f"{self.name}: vLLM refuses the engine options {engine_options!r}: {wrong}") from wrong
        if lora is None and self._options.get("enable_lora") and current_platform.is_cpu():
            # Its CPU kernels take the index -1, for no adapter, as Python does: the last one.
            raise ConfigError(f"{self.name}: on a CPU vLLM would put adapters on the bare model; leave out enable_lora")
        self.capabilities = expected(source)
        self._engine: Engine | None = None

    async def complete(self, request: Request) -> Completion:
        """The whole reply."""
        async with aclosing(self.stream(request)) as deltas:
            return await collect(deltas)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The reply as it is made. Leaving early or running out of time aborts it in the engine."""
        require_able(self, request)
        feed = Feed(model=self.name, timeout=request.timeout)
        if self._engine is None:
            self._engine = lease(self._options)
        answering = asyncio.run_coroutine_threadsafe(self._answer(self._engine, request, feed), self._engine.loop)
        try:
            async with aclosing(feed.deltas()) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            answering.cancel()

    async def aclose(self) -> None:
        """Give the engine back; the last model to do so shuts it down."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(release, engine)

    async def _answer(self, engine: Engine, request: Request, feed: Feed) -> None:
        try:
            feed.put(Delta(completion=await self._generate(engine, request, feed)))
        except asyncio.CancelledError:
            feed.put(ModelError(f"{self.name} was closed before it had answered", model=self.name))
            raise
        except Exception as failed:  # it leaves the engine's loop as data
            feed.put(_translated(failed, self.name))

    async def _generate(self, engine: Engine, request: Request, feed: Feed) -> Completion:
        llm = engine.started(self.name)
        self.capabilities = engine.chat.capabilities
        require_able(self, request)  # again: only now it is certain what the template can take
        outputs = llm.generate(
            await self._prompt(llm, engine.chat, request),
            _sampling(request, llm.model_config.get_diff_sampling_param(), marked=engine.chat.has_special_delimiters),
            request_id=f"rl-conductor-{next(_ids)}",
            lora_request=engine.lora(self._lora),
        )
        reply, written = Reader(request, model=self.name), 0
        feed.put(Delta(text=reply.add(engine.chat.begun(request))))
        async for output in outputs:
            [piece] = output.outputs
            written += len(piece.token_ids)
            feed.put(Delta(text=reply.add(piece.text)))
        finish = self._finish(output)
        feed.put(Delta(text=reply.end(cut=finish == "length")))
        return completed(reply, finish=finish, usage=_usage(output, written), model=self)

    async def _prompt(self, llm: AsyncLLM, chat: ChatTemplate, request: Request) -> EngineInput:
        images = await asyncio.to_thread(images_of, request, model=self.name)
        limit: int = llm.model_config.max_model_len
        tokens = chat.render(request, images, model=self.name)["input_ids"]
        require_room(len(tokens), limit=limit, model=self.name)
        given = TokensPrompt(prompt_token_ids=tokens)
        if images:
            given["multi_modal_data"] = {"image": images}
        [ready] = await llm.renderer.render_cmpl_async([given])
        require_room(len(ready["prompt_token_ids"]), limit=limit, model=self.name)  # an image is many tokens
        return ready

    def _finish(self, last: RequestOutput) -> FinishReason:
        why = last.outputs[0].finish_reason
        if why not in FINISH:
            raise BadResponseError(f"{self.name}: vLLM ended the reply with {why!r}", model=self.name)
        return FINISH[why]


def _usage(last: RequestOutput, written: int) -> Usage:
    return Usage(
        input_tokens=len(last.prompt_token_ids or ()),
        cached_tokens=last.num_cached_tokens or 0,
        output_tokens=written,
    )


# ---------------------------------------------------------------------------------------- requests


def _sampling(request: Request, defaults: dict[str, Any], *, marked: bool) -> SamplingParams:
    wanted, form = request.sampling, form_with_tools(request)
    given = {"temperature": wanted.temperature, "top_p": wanted.top_p, "seed": wanted.seed}
    # Left out, max_tokens would be 16; None is as many as fit.
    options = {"max_tokens": None} | defaults | {name: value for name, value in given.items() if value is not None}
    if wanted.max_tokens is not None:
        options["max_tokens"] = wanted.max_tokens
    return SamplingParams(
        **options,
        stop=list(wanted.stop),
        structured_outputs=_structured(form),
        # Delimiters of calls and of reasoning may be special, and XGrammar takes any special token for its name.
        skip_special_tokens=not marked and form is None,
        output_kind=RequestOutputKind.DELTA,
    )


def _structured(form: ResponseFormat | None) -> StructuredOutputsParams | None:
    if form is None:
        return None
    if isinstance(form, Grammar):
        return StructuredOutputsParams(grammar=form.gbnf)
    return StructuredOutputsParams(json={"type": "object"} if form.json_schema is None else form.json_schema)


def _translated(failed: Exception, model: str) -> Exception:
    """`failed` as one of our errors. What `generate` didn't expect it wraps, so the cause tells more."""
    cause = failed.__cause__ if isinstance(failed, EngineGenerateError) and failed.__cause__ else failed
    why = f"{model}: {type(cause).__name__}: {cause}"
    match cause:
        case ConductorError():
            return cause
        case GracefulHTTPError():
            error: ModelError = RateLimitError(why, model=model)
        case EngineDeadError():
            error = ModelError(why, model=model, retryable=True)
        case VLLMClientError() | ValueError():
            error = BadRequestError(why, model=model)
        case _:
            error = ModelError(why, model=model)
    error.__cause__ = failed
    return error
