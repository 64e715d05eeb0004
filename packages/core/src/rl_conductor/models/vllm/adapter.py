"""`VLLMModel`: runs models in an in-process vLLM engine, which batches requests and supports LoRA adapters.

Models with the same checkpoint and engine options share one engine, which runs on its own event loop, so that callers
on different loops can use it. Written for vLLM 0.30 and newer; comments mention differences of older versions.
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
from rl_conductor.models.base import StreamingModel
from rl_conductor.models.in_process.capabilities import require_room, require_supported
from rl_conductor.models.in_process.chat_template import ChatTemplate
from rl_conductor.models.in_process.token_stream import TokenStream, build_completion
from rl_conductor.models.tool_emulation import ToolCallReader, response_format_with_tools
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

    from rl_conductor.models.in_process.checkpoint import expected_capabilities
    from rl_conductor.models.in_process.images import decode_images
    from rl_conductor.models.vllm.engine import DEFAULTS, Engine, engines
except ImportError as missing:
    raise ConfigError(f"vllm models need {missing.name}: pip install 'rl-conductor[vllm]'") from missing

FINISH: dict[str | None, FinishReason] = {"stop": "stop", "length": "length"}
_ids = count()


class VLLMModel(StreamingModel):
    """A model in an in-process vLLM engine, which starts on first use and stops when its last model is closed."""

    def __init__(
        self, source: str, *, lora: str | None = None, price: Price | None = FREE, **engine_options: Any
    ) -> None:
        """Configures the model; the first call starts the engine.

        Args:
            source: a folder or a name on the hub.
            lora: a folder with a LoRA adapter. To share the engine with the base model, create that one with
                `enable_lora=True` (not on a CPU).
            price: the price of a call; free by default.
            engine_options: vLLM's engine arguments, such as `max_model_len` or `tensor_parallel_size`.

        Raises:
            ConfigError: vLLM is not installed, or rejects the engine options.
        """
        self.name = f"vllm:{source}" if lora is None else f"vllm:{source}+{Path(lora).name}"
        self.price = price
        self._lora = lora
        lora_options = {} if lora is None else {"enable_lora": True}
        self._options = {"model": source} | DEFAULTS | lora_options | engine_options
        try:
            AsyncEngineArgs(**self._options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self.name}: vLLM rejected the engine options {engine_options!r}: {error}") from error
        if lora is None and self._options.get("enable_lora") and current_platform.is_cpu():
            # Its CPU kernels treat the index -1, which means no adapter, as the last adapter.
            raise ConfigError(f"{self.name}: on a CPU vLLM would apply adapters to the base model; remove enable_lora")
        self.capabilities = expected_capabilities(source)
        self._engine: Engine | None = None

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Streams the reply. Closing the generator early, or a timeout, aborts the request in the engine."""
        require_supported(self, request)
        stream = TokenStream(model=self.name, timeout=request.timeout)
        if self._engine is None:
            self._engine = engines.lease(self._options)
        task = asyncio.run_coroutine_threadsafe(self._answer(self._engine, request, stream), self._engine.loop)
        try:
            async with aclosing(stream.deltas()) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            task.cancel()

    async def aclose(self) -> None:
        """Releases the engine; the last model to do so shuts it down."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(engines.release, engine)

    async def _answer(self, engine: Engine, request: Request, stream: TokenStream) -> None:
        try:
            stream.put(Delta(completion=await self._generate(engine, request, stream)))
        except asyncio.CancelledError:
            stream.put(ModelError(f"{self.name} was closed before it had answered", model=self.name))
            raise
        except Exception as error:  # passed to the caller's event loop
            stream.put(_translate_error(error, self.name))

    async def _generate(self, engine: Engine, request: Request, stream: TokenStream) -> Completion:
        llm = engine.start(self.name)
        self.capabilities = engine.chat.capabilities
        require_supported(self, request)  # again: the capabilities are only certain once loaded
        outputs = llm.generate(
            await self._prompt(llm, engine.chat, request),
            _sampling(
                request,
                llm.model_config.get_diff_sampling_param(),
                keep_special_tokens=engine.chat.has_special_delimiters,
            ),
            request_id=f"rl-conductor-{next(_ids)}",
            lora_request=engine.lora(self._lora),
        )
        reply, output_tokens = ToolCallReader(request, model=self.name), 0
        stream.put(Delta(text=reply.add(engine.chat.reasoning_prefix(request))))
        async for output in outputs:
            [piece] = output.outputs
            output_tokens += len(piece.token_ids)
            stream.put(Delta(text=reply.add(piece.text)))
        finish = self._finish(output)
        stream.put(Delta(text=reply.end(truncated=finish == "length")))
        return build_completion(reply, request, finish=finish, usage=_usage(output, output_tokens), model=self)

    async def _prompt(self, llm: AsyncLLM, chat: ChatTemplate, request: Request) -> EngineInput:
        images = await asyncio.to_thread(decode_images, request, model=self.name)
        limit: int = llm.model_config.max_model_len
        tokens = chat.render(request, images, model=self.name)["input_ids"]
        require_room(len(tokens), limit=limit, model=self.name)
        prompt = TokensPrompt(prompt_token_ids=tokens)
        if images:
            prompt["multi_modal_data"] = {"image": images}
        [engine_input] = await llm.renderer.render_cmpl_async([prompt])
        require_room(len(engine_input["prompt_token_ids"]), limit=limit, model=self.name)  # an image is many tokens
        return engine_input

    def _finish(self, last: RequestOutput) -> FinishReason:
        finish_reason = last.outputs[0].finish_reason
        if finish_reason not in FINISH:
            raise BadResponseError(f"{self.name}: vLLM ended the reply with {finish_reason!r}", model=self.name)
        return FINISH[finish_reason]


def _usage(last: RequestOutput, output_tokens: int) -> Usage:
    return Usage(
        input_tokens=len(last.prompt_token_ids or ()),
        cached_tokens=last.num_cached_tokens or 0,
        output_tokens=output_tokens,
    )


# ---------------------------------------------------------------------------------------- requests


def _sampling(request: Request, defaults: dict[str, Any], *, keep_special_tokens: bool) -> SamplingParams:
    sampling, response_format = request.sampling, response_format_with_tools(request)
    fields = {"temperature": sampling.temperature, "top_p": sampling.top_p, "seed": sampling.seed}
    # The default of max_tokens is 16; None means as many as fit.
    options = {"max_tokens": None} | defaults | {name: value for name, value in fields.items() if value is not None}
    if sampling.max_tokens is not None:
        options["max_tokens"] = sampling.max_tokens
    return SamplingParams(
        **options,
        stop=list(sampling.stop),
        structured_outputs=_structured(response_format),
        # Delimiters of calls and reasoning may be special tokens, and XGrammar matches special tokens by name.
        skip_special_tokens=not keep_special_tokens and response_format is None,
        output_kind=RequestOutputKind.DELTA,
    )


def _structured(response_format: ResponseFormat | None) -> StructuredOutputsParams | None:
    if response_format is None:
        return None
    if isinstance(response_format, Grammar):
        return StructuredOutputsParams(grammar=response_format.gbnf)
    return StructuredOutputsParams(
        json={"type": "object"} if response_format.json_schema is None else response_format.json_schema
    )


def _translate_error(error: Exception, model: str) -> Exception:
    """Translates an engine error to ours. Unexpected errors are wrapped by `generate`, so their cause is used."""
    cause = error.__cause__ if isinstance(error, EngineGenerateError) and error.__cause__ else error
    message = f"{model}: {type(cause).__name__}: {cause}"
    match cause:
        case ConductorError():
            return cause
        case GracefulHTTPError():
            translated: ModelError = RateLimitError(message, model=model)
        case EngineDeadError():
            translated = ModelError(message, model=model, retryable=True)
        case VLLMClientError() | ValueError():
            translated = BadRequestError(message, model=model)
        case _:
            translated = ModelError(message, model=model)
    translated.__cause__ = error
    return translated
