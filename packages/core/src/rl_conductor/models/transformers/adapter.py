"""Hugging Face transformers, in process: any language or vision-language model from a folder, a GGUF file or the hub.

One request at a time: concurrent ones take turns on the model's own thread, in the order they came. It is the
adapter for trying a checkpoint and for tests of training; where many requests must share a GPU, use `vllm`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path

from rl_conductor.errors import BadRequestError, ConductorError, ConfigError, ModelError
from rl_conductor.models.base import collect
from rl_conductor.models.tool_emulation import Reader, form_with_tools
from rl_conductor.models.transformers.chat_template import able, require_able, require_room
from rl_conductor.models.transformers.token_stream import Feed, Text, completed
from rl_conductor.types import FREE, Completion, Delta, FinishReason, Price, Request, Usage

try:
    import torch
    from xgrammar import CompiledGrammar

    from rl_conductor.models.images import images_of
    from rl_conductor.models.transformers.causal_lm import CausalLM
    from rl_conductor.models.transformers.checkpoint import expected
except ImportError as missing:
    raise ConfigError(f"transformers models need {missing.name}: pip install 'rl-conductor[transformers]'") from missing


class TransformersModel:
    """A model that is loaded on first use and kept in memory until `aclose`."""

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
        """Load nothing yet.

        Args:
            source: a folder, a `.gguf` file, or a name on the hub.
            gguf_file: the GGUF file to take from a folder or hub name; its weights are unpacked when loaded.
            adapter: a folder or hub name of a LoRA adapter (peft), put on top.
            device: such as `cuda:1`; `auto` spreads the model over what there is.
            dtype: such as `bfloat16`; `auto` takes the checkpoint's own.
            price: what a call is accounted as; your own hardware counts as free.

        Raises:
            ConfigError: a library is missing, or `source` is a path where nothing is.
        """
        path = Path(source).expanduser()
        if (path.suffix == ".gguf" or path.is_absolute() or source.startswith(".")) and not path.exists():
            raise ConfigError(f"there is nothing at {path}: give a model's folder, a .gguf file, or a name on the hub")
        self._source, self._gguf_file = (str(path) if path.exists() else source), gguf_file
        if path.suffix == ".gguf":
            self._source, self._gguf_file = str(path.parent), path.name
        self.name = f"transformers:{source}"
        # To read a GGUF file's vocabulary takes seconds.
        self.capabilities = able(tools=True, images=False) if self._gguf_file else expected(self._source)
        self.price = price
        self._adapter = adapter
        self._device = device
        self._dtype = dtype
        self._engine: CausalLM | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def complete(self, request: Request) -> Completion:
        """The whole reply."""
        async with aclosing(self.stream(request)) as deltas:
            return await collect(deltas)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The reply as it is made. Leaving early or running out of time ends it at the next token."""
        require_able(self, request)
        feed = Feed(model=self.name, timeout=request.timeout)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=self.name)
        self._thread.submit(self._answer, request, feed)
        async with aclosing(feed.deltas()) as deltas:
            async for delta in deltas:
                yield delta

    async def aclose(self) -> None:
        """Let the memory go, after the requests that were made before."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.submit(self._unload)
            thread.shutdown(wait=False)

    def _unload(self) -> None:
        self._engine = None

    def _answer(self, request: Request, feed: Feed) -> None:
        if feed.abandoned.is_set():
            return
        try:
            feed.put(Delta(completion=self._completion(request, feed)))
        except ConductorError as known:
            feed.put(known)
        except Exception as foreign:  # it leaves this thread as data
            full = isinstance(foreign, torch.OutOfMemoryError)
            error = ModelError(f"{self.name}: {type(foreign).__name__}: {foreign}", model=self.name, retryable=full)
            error.__cause__ = foreign
            feed.put(error)

    def _completion(self, request: Request, feed: Feed) -> Completion:
        engine = self._loaded()
        require_able(self, request)  # again: only now it is certain what the template can take
        prompt = engine.chat.render(request, images_of(request, model=self.name), model=self.name, return_tensors="pt")
        length: int = prompt["input_ids"].shape[1]
        require_room(length, limit=engine.limit, model=self.name)
        reply = Reader(request, model=self.name)
        feed.put(Delta(text=reply.add(engine.chat.begun(request))))
        text = self._written(engine, prompt, request, reply=reply, feed=feed)
        finish: FinishReason = "stop" if text.stopped or text.tokens[-1] in engine.ends else "length"
        feed.put(Delta(text=reply.add(text.end()) + reply.end(cut=finish == "length")))
        usage = Usage(input_tokens=length, output_tokens=len(text.tokens))
        return completed(reply, finish=finish, usage=usage, model=self)

    def _written(
        self, engine: CausalLM, prompt: Mapping[str, torch.Tensor], request: Request, *, reply: Reader, feed: Feed
    ) -> Text:
        text = Text(engine.decode, request.sampling.stop)

        def take(token: int) -> bool:
            feed.put(Delta(text=reply.add(text.add(token))))
            return text.stopped or feed.abandoned.is_set()

        room = engine.limit - prompt["input_ids"].shape[1]
        engine.generate(
            prompt,
            sampling=request.sampling,
            grammar=self._grammar(engine, request),
            max_tokens=min(request.sampling.max_tokens or room, room),
            on_token=take,
        )
        return text

    def _grammar(self, engine: CausalLM, request: Request) -> CompiledGrammar | None:
        form = form_with_tools(request)
        try:
            return None if form is None else engine.compiled(form)
        except RuntimeError as refused:
            why = f"{self.name}: xgrammar can't read the response format: {refused}"
            raise BadRequestError(why, model=self.name) from refused

    def _loaded(self) -> CausalLM:
        if self._engine is None:
            try:
                self._engine = CausalLM(
                    self._source,
                    gguf_file=self._gguf_file,
                    adapter=self._adapter,
                    device=self._device,
                    dtype=self._dtype,
                )
            except (OSError, ValueError, ImportError) as failed:
                raise ModelError(f"{self.name} can't be loaded: {failed}", model=self.name) from failed
            self.capabilities = self._engine.chat.capabilities
        return self._engine
