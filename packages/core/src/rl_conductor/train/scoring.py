"""Log-probabilities of plans, by the distribution that they were drawn from (see `held`).

What prompts begin with together is read once, and the rest of each on top of what the model remembers of it: a prompt
is several times longer than a plan, so for a group of eight that is a quarter of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from rl_conductor.train.held import Held


class Scored(NamedTuple):
    """Of each token of a plan, in order."""

    log_probs: torch.Tensor
    entropies: torch.Tensor
    """In nats, without a gradient."""


def score(
    model: Any,
    prompts: Sequence[Sequence[int]],
    plans: Sequence[Sequence[int]],
    *,
    temperature: float,
    held: Held | None,
    share: bool = True,
) -> list[Scored]:
    """The scores of plans, each for the prompt beside it.

    Args:
        model: a causal language model.
        prompts: their tokens.
        plans: theirs; none is empty.
        temperature: that they were drawn at.
        held: the grammar that they were held to.
        share: read once what the prompts begin with together; a model that checkpoints its gradients can't.
    """
    allowed = [held.allowed(plan) if held else None for plan in plans]
    free = [_free(plan, mask) for plan, mask in zip(plans, allowed, strict=True)]
    logits = _logits(model, prompts, plans, free, shared=_shared(prompts) if share else 0)
    scored = []
    for rows, plan, mask, places in zip(logits, plans, allowed, free, strict=True):
        tempered = rows.float() / temperature
        if mask is not None:
            tempered = tempered.masked_fill(~mask[places].to(tempered.device), -torch.inf)
        scored.append(_spread(tempered, plan, places))
    return scored


def _free(plan: Sequence[int], allowed: torch.Tensor | None) -> torch.Tensor:
    """The places where there was a choice."""
    if allowed is None:
        return torch.arange(len(plan))
    return (allowed.sum(-1) > 1).nonzero().squeeze(-1)


def _spread(logits: torch.Tensor, plan: Sequence[int], places: torch.Tensor) -> Scored:
    """Scores of all places from the logits of those with a choice; the others have 0."""
    logs = logits.log_softmax(-1)
    chosen = torch.tensor(plan, device=logits.device)[places]
    picked = logs.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
    entropy = torch.special.entr(logs.detach().exp()).sum(-1)
    zeros = logits.new_zeros(len(plan))
    places = places.to(logits.device)
    return Scored(zeros.index_put((places,), picked), zeros.index_put((places,), entropy))


def _shared(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens all prompts begin with; of none all, since its last token predicts the first one of a plan."""
    alike = sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, zip(*prompts, strict=False)))
    return min(alike, min(map(len, prompts)) - 1)


def _logits(
    model: Any,
    prompts: Sequence[Sequence[int]],
    plans: Sequence[Sequence[int]],
    free: Sequence[torch.Tensor],
    *,
    shared: int,
) -> list[torch.Tensor]:
    """Logits for the free places of each plan: (places, vocabulary)."""
    device = model.device
    rows = [torch.tensor([*prompt, *plan][shared:-1]) for prompt, plan in zip(prompts, plans, strict=True)]
    before = [len(prompt) - shared - 1 + places for prompt, places in zip(prompts, free, strict=True)]
    kept = torch.cat(before).unique()
    # Padding stands behind a plan, where nothing sees it.
    logits = model(
        input_ids=pad_sequence(rows, batch_first=True).to(device),
        past_key_values=_memory(model, prompts[0][:shared], rows=len(rows)) if shared else None,
        logits_to_keep=kept.to(device),
        use_cache=False,
    ).logits
    return [row[torch.searchsorted(kept, places).to(device)] for row, places in zip(logits, before, strict=True)]


def _memory(model: Any, tokens: Sequence[int], *, rows: int) -> Any:
    """What the model remembers of `tokens`, for so many rows."""
    read = torch.tensor([tokens], device=model.device)
    memory = model(input_ids=read, use_cache=True, logits_to_keep=1).past_key_values
    memory.batch_repeat_interleave(rows)
    return memory
