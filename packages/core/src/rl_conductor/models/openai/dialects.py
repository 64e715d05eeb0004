"""Dialects of the Chat Completions API: how OpenAI's servers and compatible ones differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from rl_conductor.text.reasoning import ReasoningStart


@dataclass(frozen=True)
class Dialect:
    """Differences between servers that implement the API."""

    max_tokens: str = "max_tokens"
    """Name of the field for the output limit."""
    seed: str = "seed"
    """Name of the field for the seed."""
    stream_options: bool = True
    """Whether streams take `stream_options`; other servers count usage in every stream and may refuse the field."""
    files: bool = False
    """Whether the server accepts documents."""
    array_bounds: bool = False
    """As in `Capabilities`; `False` where a model behind the server may refuse them."""
    strict_mode: bool = False
    """Whether every model enforces schemas in strict mode; others may refuse it, as most of Groq's do."""
    grammar: Callable[[str], dict[str, Any]] | None = None
    """Builds the fields for a GBNF grammar; `None` if the server does not support grammars."""
    lengths: Literal["grammar", "check"] = "grammar"
    """As in `Capabilities`."""
    reasoning_start: ReasoningStart = "unknown"
    """As in `Capabilities`. Servers of open models may have no parser for the reasoning of the model at hand."""


DIALECTS = {
    "openai": Dialect(
        max_tokens="max_completion_tokens", files=True, array_bounds=True, strict_mode=True, reasoning_start="outside"
    ),
    "openrouter": Dialect(files=True),
    "compatible": Dialect(),
    "mistral": Dialect(seed="random_seed", stream_options=False),
    "llama.cpp": Dialect(array_bounds=True, grammar=lambda gbnf: {"grammar": gbnf}),
    # vLLM ignores the older `guided_grammar` silently. A grammar matches a special token by the text of its name.
    "vllm": Dialect(
        array_bounds=True,
        grammar=lambda gbnf: {"structured_outputs": {"grammar": gbnf}, "skip_special_tokens": False},
        lengths="check",
    ),
}
