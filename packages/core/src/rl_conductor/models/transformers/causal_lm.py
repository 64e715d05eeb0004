"""Loads a causal language model and generates tokens, optionally constrained by a grammar.

Requires torch, transformers and xgrammar. XGrammar is used because it accepts GBNF unchanged, as vLLM's default backend
does; llguidance would need a conversion.
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

from rl_conductor.models.in_process.chat_template import ChatTemplate
from rl_conductor.models.in_process.checkpoint import sees_images
from rl_conductor.models.transformers.vocabulary import vocabulary
from rl_conductor.types import Grammar, ResponseFormat, Sampling


class CausalLM:
    """A loaded model with its tokenizer and compiled grammars. Not thread-safe."""

    def __init__(self, source: str, *, gguf_file: str | None, adapter: str | None, device: str, dtype: str) -> None:
        """Loads the model. Raises `OSError`, `ValueError` or `ImportError`, as transformers does."""
        options: dict[str, Any] = {"dtype": dtype, "device_map": device}
        if gguf_file is not None:
            # Quantized weights can be neither trained nor saved, and their fast kernels are downloaded from the hub.
            options |= {"gguf_file": gguf_file, "quantization_config": GgufConfig(dequantize=True)}
        self._tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=gguf_file)
        has_images = gguf_file is None and sees_images(AutoConfig.from_pretrained(source))
        processor = AutoProcessor.from_pretrained(source) if has_images else None
        self.chat = ChatTemplate(self._tokenizer, parts=has_images, processor=processor)
        model_class = AutoModelForImageTextToText if has_images else AutoModelForCausalLM
        self._model = model_class.from_pretrained(source, **options).eval()
        if adapter is not None:
            self._model.load_adapter(adapter)
        config = self._model.config.get_text_config()
        self.limit: int = config.max_position_embeddings
        """Maximum tokens of prompt and reply together."""
        self._defaults = self._model.generation_config
        ends = self._defaults.eos_token_id or self._tokenizer.eos_token_id
        self.ends: list[int] = [ends] if isinstance(ends, int) else list(ends)
        """Ids of the tokens that end a reply."""
        # Our own processors do the sampling; `generate` would apply the checkpoint's defaults to unset parameters.
        self._model.generation_config = GenerationConfig(
            do_sample=False,
            eos_token_id=self.ends,
            pad_token_id=self.ends[0],
            repetition_penalty=self._defaults.repetition_penalty,
        )
        tokens = vocabulary(self._tokenizer, size=config.vocab_size, ends=self.ends)
        self._grammars = xgrammar.GrammarCompiler(tokens, cache_limit_bytes=64 * 2**20)

    def decode(self, tokens: list[int]) -> str:
        """Decodes `tokens` without special tokens, except delimiters of reasoning."""
        visible_tokens = [token for token in tokens if token not in self.chat.hidden]
        text: str = self._tokenizer.decode(
            visible_tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def compile_grammar(self, response_format: ResponseFormat) -> xgrammar.CompiledGrammar:
        """Compiles a response format to a grammar. Raises `RuntimeError` if it is invalid."""
        if isinstance(response_format, Grammar):
            return self._grammars.compile_grammar(response_format.gbnf)
        schema = {"type": "object"} if response_format.json_schema is None else response_format.json_schema
        # With free white space, a weak model may write nothing else until its tokens are used up.
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
        """Generates a reply until `max_tokens`, a token of `ends`, or a token for which `on_token` returns `True`."""
        # The grammar is applied first: `top_p` might keep only tokens that it forbids.
        processors: list[LogitsProcessor] = [] if grammar is None else [_GrammarLogitsProcessor(grammar)]
        self._model.generate(
            **{name: self._to_device(value) for name, value in prompt.items()},
            max_new_tokens=max_tokens,
            logits_processor=LogitsProcessorList([*processors, *self._sampling_processors(sampling)]),
            stopping_criteria=StoppingCriteriaList([_TokenCallback(on_token)]),
        )

    def _to_device(self, value: torch.Tensor) -> torch.Tensor:
        return value.to(self._model.device, self._model.dtype if value.is_floating_point() else value.dtype)

    def _sampling_processors(self, sampling: Sampling) -> list[LogitsProcessor]:
        temperature = _first_set(sampling.temperature, self._defaults.temperature, 1.0)
        top_p = _first_set(sampling.top_p, self._defaults.top_p, 1.0)
        if temperature == 0:
            return []
        warpers: list[LogitsProcessor] = [TemperatureLogitsWarper(temperature)]
        if self._defaults.top_k:
            warpers.append(TopKLogitsWarper(self._defaults.top_k))
        if top_p < 1:
            warpers.append(TopPLogitsWarper(top_p))
        return [*warpers, _SeededSampling(sampling.seed)]


def _first_set(*values: float | None) -> float:
    return float(next(value for value in values if value is not None))


class _GrammarLogitsProcessor(LogitsProcessor):  # type: ignore[misc, unused-ignore]
    """Masks tokens that the grammar forbids; xgrammar's own processor relies on an `assert`, which `-O` removes."""

    def __init__(self, grammar: xgrammar.CompiledGrammar) -> None:
        self._matcher = xgrammar.GrammarMatcher(grammar)
        self._allowed = xgrammar.allocate_token_bitmask(1, grammar.tokenizer_info.vocab_size)
        self._started = False

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self._started and not self._matcher.accept_token(int(input_ids[0, -1])):
            raise RuntimeError("a token outside the grammar was sampled")
        self._started = True
        self._matcher.fill_next_token_bitmask(self._allowed)
        logits = scores if scores.is_cuda else scores.cpu()  # xgrammar has kernels for CUDA and CPU only
        xgrammar.apply_token_bitmask_inplace(logits, self._allowed.to(logits.device))
        return logits.to(scores.device)


class _SeededSampling(LogitsProcessor):  # type: ignore[misc, unused-ignore]
    """Samples the token with its own generator, so that a seed is reproducible under concurrency."""

    def __init__(self, seed: int | None) -> None:
        self._generator = torch.Generator()
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)

    def __call__(self, _input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        token = torch.multinomial(scores.softmax(-1).cpu(), 1, generator=self._generator).to(scores.device)
        return torch.full_like(scores, -torch.inf).scatter(1, token, 0.0)


class _TokenCallback(StoppingCriteria):  # type: ignore[misc, unused-ignore]
    """Calls `on_token` after every token and stops if it returns `True`."""

    def __init__(self, on_token: Callable[[int], bool]) -> None:
        self._on_token = on_token

    def __call__(self, input_ids: torch.Tensor, _scores: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.tensor([self._on_token(int(input_ids[0, -1]))], device=input_ids.device)
