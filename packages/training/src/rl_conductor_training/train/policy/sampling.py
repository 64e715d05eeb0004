"""Samples plans under the grammar, with transformers or with TRL's vLLM engine. Works on tokens only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers import GenerationConfig, LogitsProcessorList
from trl.extras.profiling import profiling_context
from trl.models import unwrap_model_for_generation

from rl_conductor_training.train.policy.grammar_constraint import GrammarConstraint, GrammarLogitsProcessor


class SampledPlan(NamedTuple):
    """The tokens of a sampled plan."""

    tokens: list[int]
    """Including the end token."""
    log_probs: list[float] | None
    """Log-probabilities from vLLM; `None` with transformers, where they are computed for the loss anyway."""


def sample_plans(
    prompts: Sequence[list[int]], trainer: Any, grammar: GrammarConstraint | None, *, group_size: int
) -> list[SampledPlan]:
    """Samples a plan for each prompt.

    Args:
        prompts: the tokens of the prompts.
        trainer: TRL's trainer, with the model.
        grammar: the grammar to sample under.
        group_size: number of consecutive equal prompts.
    """
    return (_sample_with_vllm if trainer.use_vllm else _sample_with_transformers)(prompts, trainer, grammar, group_size)


def _sample_with_vllm(
    prompts: Sequence[list[int]], trainer: Any, grammar: GrammarConstraint | None, group_size: int
) -> list[SampledPlan]:
    engine = trainer.vllm_generation
    engine.generation_kwargs = grammar.vllm_options if grammar else {}
    _, plans, log_probs, _ = engine.generate(
        prompts=list(prompts),
        images=None,
        num_generations=group_size,
        profiler=profiling_context(trainer, "vLLM.generate"),
    )
    return [
        SampledPlan(plan, [candidates[0] for candidates in plan_log_probs])
        for plan, plan_log_probs in zip(plans, log_probs, strict=True)
    ]


def _sample_with_transformers(
    prompts: Sequence[list[int]], trainer: Any, grammar: GrammarConstraint | None, _group_size: int
) -> list[SampledPlan]:
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
        return [SampledPlan(plan, None) for plan in generate(model, prompts, trainer.generation_config, grammar)]


def generate(
    model: Any, prompts: Sequence[Sequence[int]], config: GenerationConfig, grammar: GrammarConstraint | None
) -> list[list[int]]:
    """Generates a plan for each prompt, including its end token. Equal prompts are computed once."""
    unique = list(dict.fromkeys(map(tuple, prompts)))
    tokens, mask = _pad_left(unique, config.pad_token_id, model.device)
    rows = torch.tensor([unique.index(tuple(prompt)) for prompt in prompts], device=model.device)
    with torch.no_grad():
        cache = _prefill(model, tokens[:, :-1], mask[:, :-1])
        cache.batch_select_indices(rows)
        output = model.generate(
            input_ids=tokens[rows],
            attention_mask=mask[rows],
            past_key_values=cache,
            generation_config=config,
            logits_processor=LogitsProcessorList([GrammarLogitsProcessor(grammar, len(prompts))] if grammar else []),
        )
    return [_cut_after_end(plan, config.eos_token_id) for plan in output[:, tokens.shape[1] :].tolist()]


def _pad_left(
    prompts: Sequence[Sequence[int]], pad_token: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the padded tokens and their attention mask."""
    length = max(map(len, prompts))
    padding = [length - len(prompt) for prompt in prompts]
    tokens = [[pad_token] * count + list(prompt) for count, prompt in zip(padding, prompts, strict=True)]
    mask = [[0] * count + [1] * len(prompt) for count, prompt in zip(padding, prompts, strict=True)]
    return torch.tensor(tokens, device=device), torch.tensor(mask, device=device)


def _prefill(model: Any, tokens: torch.Tensor, mask: torch.Tensor) -> Any:
    """Computes the keys and values of the prompts."""
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    output = model(input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1)
    return output.past_key_values


def _cut_after_end(plan: list[int], end_tokens: Sequence[int]) -> list[int]:
    end = next((position for position, token in enumerate(plan) if token in end_tokens), len(plan) - 1)
    return plan[: end + 1]
