"""Hugging Face transformers, in process: any causal language model from a folder, a GGUF file or the hub.

One request at a time: concurrent ones take turns on the model's own thread, in the order they came. It is the
adapter for trying a checkpoint and for tests of training; where many requests must share a GPU, use `vllm`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_conductor.errors import BadRequestError, ConductorError, ConfigError, ModelError
from rl_conductor.models.base import Capabilities, checked, collect, priced, require
from rl_conductor.models.inprocess import Feed, Text, prompt_tokens
from rl_conductor.types import (
    FREE,
    Completion,
    Delta,
    Grammar,
    Message,
    Price,
    Request,
    ResponseFormat,
    Sampling,
    Usage,
)

try:
    import torch
    import xgrammar
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        GenerationConfig,
        GgufConfig,
        LogitsProcessor,
        LogitsProcessorList,
        StoppingCriteria,
        StoppingCriteriaList,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )
except ImportError as missing:
    raise ConfigError(
        f"transformers models need {missing.name}: pip install 'rl-conductor[transformers]'"
    ) from missing


class TransformersModel:
    """A model that transformers loads on first use and keeps in memory until `aclose`."""

    capabilities = Capabilities(json_schema=True, grammar=True)

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
        """Args:
        source: a folder, a `.gguf` file, or a name on the hub.
        gguf_file: name of a GGUF file inside `source`; its weights are unpacked when loaded.
        adapter: a folder or hub name of a LoRA adapter (peft), put on top.
        device: such as `cuda:1`; `auto` spreads the model over what there is.
        dtype: such as `bfloat16`; `auto` takes the checkpoint's own.
        price: what a call is accounted as; your own hardware counts as free.

        Raises:
        ConfigError: a library is missing, or `source` is a path where nothing is.
        """
        path = Path(source).expanduser()
        if path.suffix == ".gguf":
            self._from, self._gguf = str(path.parent), path.name
        else:
            self._from, self._gguf = (str(path) if path.exists() else source), gguf_file
        if path.suffix == ".gguf" or source.startswith((".", "/", "~")):
            _must_exist(path)
        self.name = f"transformers:{source}"
        self.price = price
        self._adapter = adapter
        self._device = device
        self._dtype = dtype
        self._engine: _Engine | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def complete(self, request: Request) -> Completion:
        """The whole reply."""
        async with aclosing(self.stream(request)) as deltas:
            return await collect(deltas)

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        """The reply as it is made. Leaving early or running out of time ends it at the next token."""
        require(self, request)
        feed = Feed(model=self.name, timeout=request.timeout)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=self.name)
        self._thread.submit(self._answer, request, feed)
        async with aclosing(feed.deltas()) as deltas:
            async for delta in deltas:
                yield delta

    async def aclose(self) -> None:
        """Let the memory go once the requests that were made are done."""
        thread, self._thread, self._engine = self._thread, None, None
        if thread is not None:
            thread.shutdown(wait=False)

    def _answer(self, request: Request, feed: Feed) -> None:
        if feed.abandoned.is_set():
            return
        try:
            feed.put(Delta(completion=self._generate(request, feed)))
        except ConductorError as known:
            feed.put(known)
        except Exception as foreign:  # it leaves this thread as data
            full = isinstance(foreign, torch.OutOfMemoryError)
            why = f"{self.name}: {type(foreign).__name__}: {foreign}"
            error = ModelError(why, model=self.name, retryable=full)
            error.__cause__ = foreign
            feed.put(error)

    def _generate(self, request: Request, feed: Feed) -> Completion:
        if self._engine is None:
            self._engine = self._load()
        engine = self._engine
        prompt = prompt_tokens(engine.tokenizer, request.messages, model=self.name, limit=engine.limit)
        text = Text(engine.decode, request.sampling.stop)
        room = engine.limit - len(prompt)
        engine.run(
            prompt,
            processors=_processors(engine, request, model=self.name),
            max_tokens=min(request.sampling.max_tokens or room, room),
            listener=_Listener(text, feed),
        )
        feed.put(Delta(text=text.end()))
        ended = text.stopped or text.tokens[-1] in engine.ends
        usage = Usage(input_tokens=len(prompt), output_tokens=len(text.tokens))
        return checked(
            Completion(
                message=Message.assistant(text.shown),
                usage=priced(usage, self.price),
                finish_reason="stop" if ended else "length",
                model=self.name,
            )
        )

    def _load(self) -> _Engine:
        options: dict[str, Any] = {"dtype": self._dtype, "device_map": self._device}
        if self._gguf is not None:  # packed weights can't be trained or saved, and their kernels are fetched from the hub
            options |= {"gguf_file": self._gguf, "quantization_config": GgufConfig(dequantize=True)}
        try:
            tokenizer = AutoTokenizer.from_pretrained(self._from, gguf_file=self._gguf)
            model = AutoModelForCausalLM.from_pretrained(self._from, **options)
            if self._adapter is not None:
                model.load_adapter(self._adapter)
        except (OSError, ValueError, ImportError) as failed:
            raise ModelError(f"{self.name} can't be loaded: {failed}", model=self.name) from failed
        return _Engine(model, tokenizer)


def _must_exist(path: Path) -> None:
    if not path.exists():
        raise ConfigError(f"there is nothing at {path}: give a model's folder, a .gguf file, or a name on the hub")


# ------------------------------------------------------------------------------------------ engine


class _Engine:
    """A loaded model with what is made once for it. It belongs to one thread."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.defaults = model.generation_config
        config = model.config.get_text_config()
        self.limit: int = config.max_position_embeddings
        ends = self.defaults.eos_token_id or tokenizer.eos_token_id
        self.ends = [ends] if isinstance(ends, int) else list(ends)
        info = xgrammar.TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=config.vocab_size, stop_token_ids=self.ends
        )
        self.grammars = xgrammar.GrammarCompiler(info, cache_limit_bytes=64 * 2**20)
        # We draw tokens ourselves; `generate` would fill every setting we leave out with the checkpoint's own.
        model.generation_config = GenerationConfig(
            do_sample=False,
            eos_token_id=self.ends,
            pad_token_id=self.ends[0],
            repetition_penalty=self.defaults.repetition_penalty,
        )
        self._model = model.eval()

    def decode(self, tokens: list[int]) -> str:
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def run(
        self, prompt: list[int], *, processors: list[LogitsProcessor], max_tokens: int, listener: StoppingCriteria
    ) -> None:
        """Generate until `listener` says so, the model ends, or `max_tokens` are written."""
        ids = torch.tensor([prompt], device=self._model.device)
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            logits_processor=LogitsProcessorList(processors),
            stopping_criteria=StoppingCriteriaList([listener]),
        )


def _processors(engine: _Engine, request: Request, *, model: str) -> list[LogitsProcessor]:
    """What is done to the logits, in order. The grammar comes first: `top_p` of what is forbidden would be nothing."""
    draw = _drawing(engine.defaults, request.sampling)
    if request.response_format is None:
        return draw
    try:
        compiled = _compiled(engine.grammars, request.response_format)
    except RuntimeError as refused:
        raise BadRequestError(f"{model}: xgrammar can't read the response format: {refused}", model=model) from refused
    return [_Held(compiled), *draw]


def _compiled(grammars: xgrammar.GrammarCompiler, wanted: ResponseFormat) -> xgrammar.CompiledGrammar:
    if isinstance(wanted, Grammar):
        return grammars.compile_grammar(wanted.gbnf)
    schema = {"type": "object"} if wanted.json_schema is None else wanted.json_schema
    # Where blanks are free, a weak model writes blanks until its tokens are used up.
    return grammars.compile_json_schema(schema, any_whitespace=False)


def _drawing(defaults: GenerationConfig, sampling: Sampling) -> list[LogitsProcessor]:
    temperature = _first(sampling.temperature, defaults.temperature, 1.0)
    top_p = _first(sampling.top_p, defaults.top_p, 1.0)
    if temperature == 0:
        return []
    steps: list[LogitsProcessor] = [TemperatureLogitsWarper(temperature)]
    if defaults.top_k:
        steps.append(TopKLogitsWarper(defaults.top_k))
    if top_p < 1:
        steps.append(TopPLogitsWarper(top_p))
    return [*steps, _Drawn(sampling.seed)]


def _first(*values: float | None) -> float:
    return float(next(value for value in values if value is not None))


# ------------------------------------------------------------------------------- hooks of `generate`


class _Held(LogitsProcessor):
    """Holds a reply to a grammar. (xgrammar's own processor works inside `assert`, which `python -O` removes.)"""

    def __init__(self, grammar: xgrammar.CompiledGrammar) -> None:
        self._matcher = xgrammar.GrammarMatcher(grammar)
        self._allowed = xgrammar.allocate_token_bitmask(1, grammar.tokenizer_info.vocab_size)
        self._started = False

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self._started and not self._matcher.accept_token(int(input_ids[0, -1])):
            raise RuntimeError("a token outside the grammar was drawn")
        self._started = True
        self._matcher.fill_next_token_bitmask(self._allowed)
        masked = scores if scores.is_cuda else scores.cpu()  # xgrammar has kernels for these two
        xgrammar.apply_token_bitmask_inplace(masked, self._allowed.to(masked.device))
        return masked.to(scores.device)


class _Drawn(LogitsProcessor):
    """Draws the token with a generator of its own, so that a seed means the same whatever else is running."""

    def __init__(self, seed: int | None) -> None:
        self._generator = torch.Generator()
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        token = torch.multinomial(scores.softmax(-1).cpu(), 1, generator=self._generator).to(scores.device)
        return torch.full_like(scores, -torch.inf).scatter(1, token, 0.0)


@dataclass
class _Listener(StoppingCriteria):
    """Is asked after every token whether to stop: the place to pass the token on, too."""

    text: Text
    feed: Feed

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        piece = self.text.add(int(input_ids[0, -1]))
        if piece:
            self.feed.put(Delta(text=piece))
        stop = self.text.stopped or self.feed.abandoned.is_set()
        return torch.tensor([stop], device=input_ids.device)
