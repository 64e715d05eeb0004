"""Log-probabilities of plans under the distribution they were sampled from (see `grammar_constraint`).

The common prefix of the prompts is computed once, and the rest of each on top of its cached keys and values: a prompt
is several times longer than a plan, so for a group of eight that is a quarter of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from rl_conductor_training.train.policy.grammar_constraint import GrammarConstraint


class TokenLogProbs(NamedTuple):
    """Log-probability and entropy of each token of a plan."""

    log_probs: torch.Tensor
    entropies: torch.Tensor
    """In nats, without a gradient."""


def plan_logprobs(
    model: Any,
    prompts: Sequence[Sequence[int]],
    plans: Sequence[Sequence[int]],
    *,
    temperature: float,
    grammar: GrammarConstraint | None,
    share_prefix: bool = True,
) -> list[TokenLogProbs]:
    """Computes the log-probabilities of each plan, given the prompt at its position.

    Args:
        model: a causal language model.
        prompts: the tokens of the prompts.
        plans: the tokens of the plans; none is empty.
        temperature: the temperature that the plans were sampled at.
        grammar: the grammar that they were sampled under.
        share_prefix: compute the common prefix of the prompts once; not possible with gradient checkpointing.
    """
    masks = [grammar.allowed_tokens(plan) if grammar else None for plan in plans]
    choices = [_choice_positions(plan, mask) for plan, mask in zip(plans, masks, strict=True)]
    prefix_length = _common_prefix_length(prompts) if share_prefix else 0
    logits = _logits(model, prompts, plans, choices, prefix_length=prefix_length)
    results = []
    for plan_logits, plan, mask, positions in zip(logits, plans, masks, choices, strict=True):
        scaled = plan_logits.float() / temperature
        if mask is not None:
            scaled = scaled.masked_fill(~mask[positions].to(scaled.device), -torch.inf)
        results.append(_token_logprobs(scaled, plan, positions))
    return results


def _choice_positions(plan: Sequence[int], mask: torch.Tensor | None) -> torch.Tensor:
    """Returns the positions at which more than one token was allowed."""
    if mask is None:
        return torch.arange(len(plan))
    return (mask.sum(-1) > 1).nonzero().squeeze(-1)


def _token_logprobs(logits: torch.Tensor, plan: Sequence[int], positions: torch.Tensor) -> TokenLogProbs:
    """Computes the results of all tokens from the logits of `positions`; forced tokens have 0."""
    all_log_probs = logits.log_softmax(-1)
    tokens = torch.tensor(plan, device=logits.device)[positions]
    log_probs = all_log_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    entropies = torch.special.entr(all_log_probs.detach().exp()).sum(-1)
    zeros = logits.new_zeros(len(plan))
    positions = positions.to(logits.device)
    return TokenLogProbs(zeros.index_put((positions,), log_probs), zeros.index_put((positions,), entropies))


def _common_prefix_length(prompts: Sequence[Sequence[int]]) -> int:
    """Counts the common first tokens, except the last token of a prompt, which predicts the first one of a plan."""
    common = sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, zip(*prompts, strict=False)))
    return min(common, min(map(len, prompts)) - 1)


def _logits(
    model: Any,
    prompts: Sequence[Sequence[int]],
    plans: Sequence[Sequence[int]],
    choices: Sequence[torch.Tensor],
    *,
    prefix_length: int,
) -> list[torch.Tensor]:
    """Computes the logits at the `choices` of each plan: (positions, vocabulary)."""
    device = model.device
    rows = [torch.tensor([*prompt, *plan][prefix_length:-1]) for prompt, plan in zip(prompts, plans, strict=True)]
    row_positions = [
        len(prompt) - prefix_length - 1 + positions for prompt, positions in zip(prompts, choices, strict=True)
    ]
    all_positions = torch.cat(row_positions).unique()
    # Padding is on the right, where causal attention doesn't see it.
    logits = model(
        input_ids=pad_sequence(rows, batch_first=True).to(device),
        past_key_values=_prefix_cache(model, prompts[0][:prefix_length], rows=len(rows)) if prefix_length else None,
        logits_to_keep=all_positions.to(device),
        use_cache=False,
    ).logits
    return [
        row[torch.searchsorted(all_positions, positions).to(device)]
        for row, positions in zip(logits, row_positions, strict=True)
    ]


def _prefix_cache(model: Any, tokens: Sequence[int], *, rows: int) -> Any:
    """Computes the keys and values of `tokens`, repeated for each row."""
    input_ids = torch.tensor([tokens], device=model.device)
    cache = model(input_ids=input_ids, use_cache=True, logits_to_keep=1).past_key_values
    cache.batch_repeat_interleave(rows)
    return cache
