"""Draws plans for prompts, under the grammar: by transformers, or by the vLLM that TRL set up. Tokens in and out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers import GenerationConfig, LogitsProcessorList
from trl.extras.profiling import profiling_context
from trl.models import unwrap_model_for_generation

from rl_conductor.train.held import Drawing, Held


class Written(NamedTuple):
    """A plan that was drawn, as tokens."""

    plan: list[int]
    """With its end."""
    log_probs: list[float] | None
    """As vLLM has them; transformers' are those that are computed for the loss anyway."""


def plans_for(prompts: Sequence[list[int]], trainer: Any, held: Held | None, *, alike: int) -> list[Written]:
    """A plan for each prompt.

    Args:
        prompts: their tokens.
        trainer: TRL's, with the model.
        held: the grammar.
        alike: how many equal prompts stand together, all along.
    """
    return (_by_vllm if trainer.use_vllm else _by_transformers)(prompts, trainer, held, alike)


def _by_vllm(prompts: Sequence[list[int]], trainer: Any, held: Held | None, alike: int) -> list[Written]:
    engine = trainer.vllm_generation
    engine.generation_kwargs = held.for_vllm if held else {}
    _, plans, log_probs, _ = engine.generate(
        prompts=list(prompts),
        images=None,
        num_generations=alike,
        profiler=profiling_context(trainer, "vLLM.generate"),
    )
    return [Written(plan, [first[0] for first in of_plan]) for plan, of_plan in zip(plans, log_probs, strict=True)]


def _by_transformers(prompts: Sequence[list[int]], trainer: Any, held: Held | None, _alike: int) -> list[Written]:
    with (
        profiling_context(trainer, "transformers.generate"),
        unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
            generation_kwargs=trainer.generation_kwargs,
            gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
        ) as model,
    ):
        return [Written(plan, None) for plan in draw(model, prompts, trainer.generation_config, held)]


def draw(model: Any, prompts: Sequence[Sequence[int]], how: GenerationConfig, held: Held | None) -> list[list[int]]:
    """A plan for each prompt, its end included. What prompts share is read once."""
    unique = list(dict.fromkeys(map(tuple, prompts)))
    tokens, mask = _padded(unique, how.pad_token_id, model.device)
    rows = torch.tensor([unique.index(tuple(prompt)) for prompt in prompts], device=model.device)
    with torch.no_grad():
        cache = _read(model, tokens[:, :-1], mask[:, :-1])
        cache.batch_select_indices(rows)
        written = model.generate(
            input_ids=tokens[rows],
            attention_mask=mask[rows],
            past_key_values=cache,
            generation_config=how,
            logits_processor=LogitsProcessorList([Drawing(held, len(prompts))] if held else []),
        )
    return [_until_end(plan, how.eos_token_id) for plan in written[:, tokens.shape[1] :].tolist()]


def _padded(prompts: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and mask, padded on the left."""
    longest = max(map(len, prompts))
    short = [longest - len(prompt) for prompt in prompts]
    tokens = [[pad] * missing + list(prompt) for missing, prompt in zip(short, prompts, strict=True)]
    mask = [[0] * missing + [1] * len(prompt) for missing, prompt in zip(short, prompts, strict=True)]
    return torch.tensor(tokens, device=device), torch.tensor(mask, device=device)


def _read(model: Any, tokens: torch.Tensor, mask: torch.Tensor) -> Any:
    """What the model remembers of the prompts."""
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    out = model(input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1)
    return out.past_key_values


def _until_end(plan: list[int], ends: Sequence[int]) -> list[int]:
    stop = next((place for place, token in enumerate(plan) if token in ends), len(plan) - 1)
    return plan[: stop + 1]
