"""Applies the sampling settings of a request to a LlamaIndex LLM, in the places that the LLM has for them.

Keywords of a call would not do for every vendor's LLM: Google's and Ollama's ignore them, OpenAI's prefers its own
settings, and Anthropic's fails at other vendors' names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from llama_index.core.llms import LLM

from rl_conductor import Sampling
from rl_conductor.errors import BadRequestError

SPELLINGS = {
    "max_tokens": ("max_tokens", "max_output_tokens", "max_completion_tokens", "max_new_tokens", "num_predict"),
    "stop": ("stop", "stop_sequences"),
    "effort": ("reasoning_effort",),
}
"""The vendors' names of settings, of LLMs' fields and in `additional_kwargs`."""

OPTIONS: dict[str, dict[str, str]] = {
    "openai.OpenAI": {"top_p": "top_p", "seed": "seed", "stop": "stop"},
    "openai.OpenAIResponses": {},
    "anthropic.Anthropic": {"top_p": "top_p", "stop": "stop_sequences"},
    "ollama.Ollama": {"top_p": "top_p", "max_tokens": "num_predict", "seed": "seed", "stop": "stop"},
}
"""The settings that go into `additional_kwargs` by package and class, as the LLM has no fields for them."""

GOOGLE = "google_genai.GoogleGenAI"
GENERATION_CONFIG = {
    "temperature": "temperature",
    "top_p": "top_p",
    "max_tokens": "max_output_tokens",
    "seed": "seed",
    "stop": "stop_sequences",
}
"""The names of all settings in the `generation_config` of Google's LLM, which are not its fields."""


def apply_sampling(llm: LLM, sampling: Sampling, *, model: str) -> tuple[LLM, dict[str, Any]]:
    """Copies `llm` with the settings of `sampling`; returns `llm` itself if nothing changes.

    Returns:
        The LLM, and the keyword arguments that still have to be passed to its calls: to an LLM of a vendor that is not
        known here, the settings for which it has no fields.

    Raises:
        BadRequestError: `llm` has no place for a setting; the message calls it `model`.
    """
    requested = sampling.model_dump(exclude_defaults=True, mode="json")
    if GOOGLE in class_names(llm):
        names = {setting: GENERATION_CONFIG.get(setting) or _refuse(llm, setting, model) for setting in requested}
        config = {names[setting]: value for setting, value in requested.items()}
        return llm, {"generation_config": config} if config else {}
    options = next((OPTIONS[name] for name in class_names(llm) if name in OPTIONS), None)
    own_options = _own_options(llm)
    fields: dict[str, Any] = {}
    changed_options: dict[str, Any] = {}
    keywords: dict[str, Any] = {}
    for setting, value in requested.items():
        spellings = SPELLINGS.get(setting, (setting,))
        if own_names := [name for name in spellings if name in own_options]:  # they take precedence over fields
            changed_options |= dict.fromkeys(own_names, value)
        elif field := next((name for name in spellings if name in type(llm).model_fields), None):
            fields[field] = value
            if setting == "effort":  # OpenAI's LLM reads the field only for the models that it knows
                keywords[field] = value
        elif setting == "effort" or (options is not None and setting not in options):
            _refuse(llm, setting, model)
        elif options is not None:
            changed_options[options[setting]] = value
        else:
            keywords[setting] = value
    if changed_options:
        fields["additional_kwargs"] = {**own_options, **changed_options}
    return _copy(llm, fields) if fields else llm, keywords


def own_max_tokens(llm: LLM) -> int | None:
    """Returns the maximum number of tokens of a reply that `llm` sends by itself; `None` if it sends none."""
    config = getattr(llm, "_generation_config", None)
    for source in (_own_options(llm), {name: getattr(llm, name) for name in type(llm).model_fields}, config):
        for name in SPELLINGS["max_tokens"]:
            value = source.get(name) if isinstance(source, Mapping) else None
            if isinstance(value, int) and value > 0:
                return value
    return None


def thinking_tokens(llm: LLM) -> int:
    """Returns the budget for thinking in the form of Anthropic's LLM, which a maximum has to exceed; 0 without one."""
    thinking = getattr(llm, "thinking_dict", None)
    budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
    return budget if isinstance(budget, int) else 0


def class_names(llm: LLM) -> Iterator[str]:
    """Iterates over the LlamaIndex classes that `llm` is derived from, each with its package."""
    for cls in type(llm).__mro__:
        parts = cls.__module__.split(".")
        if parts[:2] == ["llama_index", "llms"] and len(parts) > 2:
            yield f"{parts[2]}.{cls.__name__}"


def _refuse(llm: LLM, setting: str, model: str) -> NoReturn:
    name = SPELLINGS["effort"][0] if setting == "effort" else setting
    raise BadRequestError(f"{model}: {type(llm).__name__} has no field {name}", model=model)


def _own_options(llm: LLM) -> dict[str, Any]:
    return getattr(llm, "additional_kwargs", None) or {}


def _copy(llm: LLM, fields: dict[str, Any]) -> LLM:
    """Copies `llm` with other fields, but with the same clients and state, which LLMs create at their first call."""
    copy = llm.model_copy(update=fields)
    object.__setattr__(copy, "__pydantic_private__", llm.__pydantic_private__)
    return copy
