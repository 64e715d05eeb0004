"""`TransformersModel`: runs a language or vision-language model from a folder, a GGUF file or the hub in process.

Requests run one at a time, in order, on the model's own thread. Use it to try a checkpoint and in tests of training;
use `vllm` to serve many requests on one GPU.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path

from rl_conductor.errors import BadRequestError, ConductorError, ConfigError, ModelError
from rl_conductor.models.base import StreamingModel
from rl_conductor.models.in_process.capabilities import in_process_capabilities, require_room, require_supported
from rl_conductor.models.in_process.token_stream import IncrementalDecoder, TokenStream, build_completion
from rl_conductor.models.tool_emulation import ToolCallReader, response_format_with_tools
from rl_conductor.types import FREE, Completion, Delta, FinishReason, Price, Request, Usage

try:
    import torch
    from xgrammar import CompiledGrammar

    from rl_conductor.models.in_process.checkpoint import expected_capabilities
    from rl_conductor.models.in_process.images import decode_images
    from rl_conductor.models.transformers.causal_lm import CausalLM
except ImportError as missing:
    raise ConfigError(f"transformers models need {missing.name}: pip install 'rl-conductor[transformers]'") from missing


class TransformersModel(StreamingModel):
    """A model that is loaded by the first call and unloaded by `aclose`."""

    def __init__(
        self,
        source: str,
        *,
        gguf_file: str | None = None,
        adapter: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        price: Price | None = FREE,
    ) -> None:
        """Configures the model; the first call loads the weights.

        Args:
            source: a folder, a `.gguf` file, or a name on the hub.
            gguf_file: the GGUF file to take from a folder or hub name; its weights are unpacked when loaded.
            adapter: a folder or hub name of a LoRA adapter (peft).
            device: such as `cuda:1`; `auto` distributes the model over the available devices.
            dtype: such as `bfloat16`; `auto` uses that of the checkpoint.
            price: the price of a call; free by default.

        Raises:
            ConfigError: a library is missing, or `source` is a path that does not exist.
        """
        path = Path(source).expanduser()
        if (path.suffix == ".gguf" or path.is_absolute() or source.startswith(".")) and not path.exists():
            raise ConfigError(f"there is nothing at {path}: give a model's folder, a .gguf file, or a name on the hub")
        self._source, self._gguf_file = (str(path) if path.exists() else source), gguf_file
        if path.suffix == ".gguf":
            self._source, self._gguf_file = str(path.parent), path.name
        self.name = f"transformers:{source}"
        # Reading the vocabulary of a GGUF file takes seconds.
        self.capabilities = (
            in_process_capabilities(tools=True) if self._gguf_file else expected_capabilities(self._source)
        )
        self.price = price
        self._adapter = adapter
        self._device = device
        self._dtype = dtype
        self._engine: CausalLM | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Streams the reply. Closing the generator early, or a timeout, stops generation at the next token."""
        require_supported(self, request)
        stream = TokenStream(model=self.name, timeout=request.timeout)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=self.name)
        self._thread.submit(self._answer, request, stream)
        async with aclosing(stream.deltas()) as deltas:
            async for delta in deltas:
                yield delta

    async def aclose(self) -> None:
        """Frees the memory after all earlier requests are done."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.submit(self._unload)
            thread.shutdown(wait=False)

    def _unload(self) -> None:
        self._engine = None

    def _answer(self, request: Request, stream: TokenStream) -> None:
        if stream.abandoned.is_set():
            return
        try:
            stream.put(Delta(completion=self._completion(request, stream)))
        except ConductorError as error:
            stream.put(error)
        except Exception as error:  # passed to the caller's event loop
            is_out_of_memory = isinstance(error, torch.OutOfMemoryError)
            message = f"{self.name}: {type(error).__name__}: {error}"
            model_error = ModelError(message, model=self.name, retryable=is_out_of_memory)
            model_error.__cause__ = error
            stream.put(model_error)

    def _completion(self, request: Request, stream: TokenStream) -> Completion:
        engine = self._get_engine()
        require_supported(self, request)  # again: the capabilities are only certain once loaded
        prompt = engine.chat.render(
            request, decode_images(request, model=self.name), model=self.name, return_tensors="pt"
        )
        prompt_tokens: int = prompt["input_ids"].shape[1]
        require_room(prompt_tokens, limit=engine.limit, model=self.name)
        reply = ToolCallReader(request, model=self.name)
        stream.put(Delta(text=reply.add(engine.chat.reasoning_prefix(request))))
        text = self._generate_text(engine, prompt, request, reply=reply, stream=stream)
        finish: FinishReason = "stop" if text.stopped or text.tokens[-1] in engine.ends else "length"
        stream.put(Delta(text=reply.add(text.end()) + reply.end(truncated=finish == "length")))
        usage = Usage(input_tokens=prompt_tokens, output_tokens=len(text.tokens))
        return build_completion(reply, request, finish=finish, usage=usage, model=self)

    def _generate_text(
        self,
        engine: CausalLM,
        prompt: Mapping[str, torch.Tensor],
        request: Request,
        *,
        reply: ToolCallReader,
        stream: TokenStream,
    ) -> IncrementalDecoder:
        text = IncrementalDecoder(engine.decode, request.sampling.stop)

        def on_token(token: int) -> bool:
            stream.put(Delta(text=reply.add(text.add(token))))
            return text.stopped or stream.abandoned.is_set()

        max_new_tokens = engine.limit - prompt["input_ids"].shape[1]
        engine.generate(
            prompt,
            sampling=request.sampling,
            grammar=self._grammar(engine, request),
            max_tokens=min(request.sampling.max_tokens or max_new_tokens, max_new_tokens),
            on_token=on_token,
        )
        return text

    def _grammar(self, engine: CausalLM, request: Request) -> CompiledGrammar | None:
        response_format = response_format_with_tools(request)
        try:
            return None if response_format is None else engine.compile_grammar(response_format)
        except RuntimeError as error:
            message = f"{self.name}: xgrammar can't read the response format: {error}"
            raise BadRequestError(message, model=self.name) from error

    def _get_engine(self) -> CausalLM:
        if self._engine is None:
            try:
                self._engine = CausalLM(
                    self._source,
                    gguf_file=self._gguf_file,
                    adapter=self._adapter,
                    device=self._device,
                    dtype=self._dtype,
                )
            except (OSError, ValueError, ImportError) as error:
                raise ModelError(f"{self.name} can't be loaded: {error}", model=self.name) from error
            self.capabilities = self._engine.chat.capabilities
        return self._engine
