"""A language model in torch: load it, hold its replies to a grammar, draw tokens, tell each one as it is made.

It needs torch, transformers and xgrammar; `transformers` is the adapter around it. Grammars are xgrammar's work
because it reads GBNF as it is, as vLLM's default backend does; llguidance wants it rewritten first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import xgrammar
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
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

from rl_conductor.models.transformers.chat_template import ChatTemplate
from rl_conductor.models.transformers.checkpoint import sees_images
from rl_conductor.models.transformers.vocabulary import vocabulary
from rl_conductor.types import Grammar, ResponseFormat, Sampling


class CausalLM:
    """A loaded model, its tokenizer and what is compiled for them. It belongs to one thread at a time."""

    def __init__(self, source: str, *, gguf_file: str | None, adapter: str | None, device: str, dtype: str) -> None:
        """Load it. Raises what transformers raises: `OSError`, `ValueError` or `ImportError`."""
        options: dict[str, Any] = {"dtype": dtype, "device_map": device}
        if gguf_file is not None:
            # Packed weights can be neither trained nor saved, and their fast kernels are fetched from the hub.
            options |= {"gguf_file": gguf_file, "quantization_config": GgufConfig(dequantize=True)}
        self._tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=gguf_file)
        sees = gguf_file is None and sees_images(AutoConfig.from_pretrained(source))
        processor = AutoProcessor.from_pretrained(source) if sees else None
        self.chat = ChatTemplate(self._tokenizer, parts=sees, processor=processor)
        kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
        self._model = kind.from_pretrained(source, **options).eval()
        if adapter is not None:
            self._model.load_adapter(adapter)
        config = self._model.config.get_text_config()
        self.limit: int = config.max_position_embeddings
        """Most tokens of prompt and reply together."""
        self._defaults = self._model.generation_config
        ends = self._defaults.eos_token_id or self._tokenizer.eos_token_id
        self.ends: list[int] = [ends] if isinstance(ends, int) else list(ends)
        """The tokens that end a reply."""
        # We draw ourselves, and `generate` would fill in the checkpoint's own settings for all that we leave out.
        self._model.generation_config = GenerationConfig(
            do_sample=False,
            eos_token_id=self.ends,
            pad_token_id=self.ends[0],
            repetition_penalty=self._defaults.repetition_penalty,
        )
        tokens = vocabulary(self._tokenizer, size=config.vocab_size, ends=self.ends)
        self._grammars = xgrammar.GrammarCompiler(tokens, cache_limit_bytes=64 * 2**20)

    def decode(self, tokens: list[int]) -> str:
        """The text of `tokens`, without the special ones."""
        shown = [token for token in tokens if token not in self.chat.hidden]
        text: str = self._tokenizer.decode(shown, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def compiled(self, wanted: ResponseFormat) -> xgrammar.CompiledGrammar:
        """What holds a reply to `wanted`. Raises `RuntimeError` when it can't be read."""
        if isinstance(wanted, Grammar):
            return self._grammars.compile_grammar(wanted.gbnf)
        schema = {"type": "object"} if wanted.json_schema is None else wanted.json_schema
        # Where blanks are free, a weak model writes blanks until its tokens are used up.
        return self._grammars.compile_json_schema(schema, any_whitespace=False)

    def generate(
        self,
        prompt: Mapping[str, torch.Tensor],
        *,
        sampling: Sampling,
        grammar: xgrammar.CompiledGrammar | None,
        max_tokens: int,
        on_token: Callable[[int], bool],
    ) -> None:
        """Write a reply. It ends at `max_tokens`, with one of `ends`, or with the token of which `on_token` says so."""
        # The grammar comes first: what `top_p` leaves over might all be forbidden.
        held: list[LogitsProcessor] = [] if grammar is None else [_Held(grammar)]
        self._model.generate(
            **{name: self._placed(value) for name, value in prompt.items()},
            max_new_tokens=max_tokens,
            logits_processor=LogitsProcessorList([*held, *self._drawing(sampling)]),
            stopping_criteria=StoppingCriteriaList([_OnToken(on_token)]),
        )

    def _placed(self, value: torch.Tensor) -> torch.Tensor:
        return value.to(self._model.device, self._model.dtype if value.is_floating_point() else value.dtype)

    def _drawing(self, sampling: Sampling) -> list[LogitsProcessor]:
        temperature = _first(sampling.temperature, self._defaults.temperature, 1.0)
        top_p = _first(sampling.top_p, self._defaults.top_p, 1.0)
        if temperature == 0:
            return []
        steps: list[LogitsProcessor] = [TemperatureLogitsWarper(temperature)]
        if self._defaults.top_k:
            steps.append(TopKLogitsWarper(self._defaults.top_k))
        if top_p < 1:
            steps.append(TopPLogitsWarper(top_p))
        return [*steps, _Drawn(sampling.seed)]


def _first(*values: float | None) -> float:
    return float(next(value for value in values if value is not None))


class _Held(LogitsProcessor):  # type: ignore[misc, unused-ignore]
    """Holds a reply to a grammar; xgrammar's own processor does its work in an `assert`, which `python -O` removes."""

    def __init__(self, grammar: xgrammar.CompiledGrammar) -> None:
        self._matcher = xgrammar.GrammarMatcher(grammar)
        self._allowed = xgrammar.allocate_token_bitmask(1, grammar.tokenizer_info.vocab_size)
        self._started = False

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self._started and not self._matcher.accept_token(int(input_ids[0, -1])):
            raise RuntimeError("a token outside the grammar was drawn")
        self._started = True
        self._matcher.fill_next_token_bitmask(self._allowed)
        masked = scores if scores.is_cuda else scores.cpu()  # the two that xgrammar has kernels for
        xgrammar.apply_token_bitmask_inplace(masked, self._allowed.to(masked.device))
        return masked.to(scores.device)


class _Drawn(LogitsProcessor):  # type: ignore[misc, unused-ignore]
    """Draws the token with a generator of its own, so that a seed means the same whatever else is running."""

    def __init__(self, seed: int | None) -> None:
        self._generator = torch.Generator()
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)

    def __call__(self, _input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        token = torch.multinomial(scores.softmax(-1).cpu(), 1, generator=self._generator).to(scores.device)
        return torch.full_like(scores, -torch.inf).scatter(1, token, 0.0)


class _OnToken(StoppingCriteria):  # type: ignore[misc, unused-ignore]
    """Is asked after every token whether to stop: the place to pass the token on, too."""

    def __init__(self, on_token: Callable[[int], bool]) -> None:
        self._on_token = on_token

    def __call__(self, input_ids: torch.Tensor, _scores: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.tensor([self._on_token(int(input_ids[0, -1]))], device=input_ids.device)
