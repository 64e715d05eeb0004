"""Draws plans for prompts: tokens from messages as in serving, then sampling under the grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList
from trl.extras.profiling import profiling_context
from trl.models import unwrap_model_for_generation

from rl_conductor.models.chat_template import ChatTemplate
from rl_conductor.train.held import Drawing, Held
from rl_conductor.types import Message, Request

Turn = dict[str, str]


class Rollouts:
    """TRL's hook for rollouts of one's own (`rollout_func`)."""

    def __init__(self, tokenizer: Any, held: Held | None, *, name: str) -> None:
        self._tokenizer = tokenizer
        self._chat = ChatTemplate(tokenizer, parts=False)
        self._held = held
        self._name = name

    def __call__(self, prompts: list[list[Turn]], trainer: Any) -> dict[str, Any]:
        """A plan for each prompt."""
        tokens = [self.tokens(messages(turns)) for turns in prompts]
        drawn, log_probs = (self._by_vllm if trainer.use_vllm else self._by_transformers)(tokens, trainer)
        return {
            "prompt_ids": tokens,
            "completion_ids": drawn,
            "logprobs": log_probs,
            "plan": [self.text(plan) for plan in drawn],
        }

    def tokens(self, told: Sequence[Message]) -> list[int]:
        """The prompt, as serving the model makes it."""
        rendered = self._chat.render(Request(messages=tuple(told)), (), model=self._name)
        ids: list[int] = rendered["input_ids"]
        return ids

    def text(self, plan: Sequence[int]) -> str:
        """The plan as serving the model reads it."""
        shown = [token for token in plan if token not in self._chat.silent]
        text: str = self._tokenizer.decode(shown, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def _by_vllm(self, prompts: list[list[int]], trainer: Any) -> tuple[list[list[int]], list[list[float]]]:
        _, plans, log_probs, _ = trainer.vllm_generation.generate(
            prompts=prompts,
            images=None,
            num_generations=trainer.num_generations,
            profiler=profiling_context(trainer, "vLLM.generate"),
        )
        return plans, [[first[0] for first in plan] for plan in log_probs]

    def _by_transformers(self, prompts: list[list[int]], trainer: Any) -> tuple[list[list[int]], None]:
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
            return draw(model, prompts, trainer.generation_config, self._held), None


def messages(turns: Sequence[Turn]) -> tuple[Message, ...]:
    """Messages, from the turns of a data set's row."""
    return tuple(Message(role=turn["role"], content=turn["content"]) for turn in turns)


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
