"""Log-probabilities of plans, by the distribution that they were drawn from (see `held`).

Plans that share a prompt are scored in one sequence, `prompt plan plan ...`, under a mask by which no plan sees
another: a prompt is several times longer than a plan, so for a group of eight that is a quarter of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from rl_conductor.train.held import Held


class Scored(NamedTuple):
    """Of each token of a plan, in order."""

    log_probs: torch.Tensor
    entropies: torch.Tensor
    """In nats, without a gradient."""


def score(
    model: Any, prompt: Sequence[int], plans: Sequence[Sequence[int]], *, temperature: float, held: Held | None
) -> list[Scored]:
    """The scores of plans for one prompt.

    Args:
        model: a causal language model that takes a mask of its own (sdpa or eager attention).
        prompt: its tokens.
        plans: theirs; none is empty.
        temperature: that they were drawn at.
        held: the grammar that they were held to.
    """
    allowed = [held.allowed(plan) if held else None for plan in plans]
    free = [_free(plan, mask) for plan, mask in zip(plans, allowed, strict=True)]
    logits = _logits(model, prompt, plans, free) / temperature
    scored, start = [], 0
    for plan, mask, places in zip(plans, allowed, free, strict=True):
        rows = logits[start : start + len(places)]
        start += len(places)
        if mask is not None:
            rows = rows.masked_fill(~mask[places].to(rows.device), -torch.inf)
        scored.append(_spread(rows, plan, places))
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


def _logits(
    model: Any, prompt: Sequence[int], plans: Sequence[Sequence[int]], free: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Logits for the free places of all plans, one after the other: (places, vocabulary)."""
    device = model.device
    lengths = torch.tensor([len(plan) for plan in plans])
    starts = len(prompt) + lengths.cumsum(0) - lengths
    tokens = torch.tensor([*prompt, *(token for plan in plans for token in plan)], device=device)
    owner = torch.cat([torch.full((len(prompt),), -1), torch.arange(len(plans)).repeat_interleave(lengths)])
    inside = torch.arange(len(owner)) - torch.cat([torch.zeros(1, dtype=torch.long), starts])[owner + 1]
    positions = inside + len(prompt) * (owner >= 0)
    # What predicts the first token of every plan is the last one of the prompt.
    before = [
        torch.where(places == 0, len(prompt) - 1, start + places - 1)
        for start, places in zip(starts, free, strict=True)
    ]
    logits = model(
        input_ids=tokens.unsqueeze(0),
        attention_mask=_mask(owner, model.dtype).to(device),
        position_ids=positions.unsqueeze(0).to(device),
        logits_to_keep=torch.cat(before).to(device),
        use_cache=False,
    ).logits
    return logits.squeeze(0).float()


def _mask(owner: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to attention: a token sees the earlier ones of the prompt and of its own plan."""
    seen = (owner.unsqueeze(0) == -1) | (owner.unsqueeze(0) == owner.unsqueeze(1))
    blocked = torch.full(seen.shape, torch.finfo(dtype).min, dtype=dtype).masked_fill(seen.tril(), 0.0)
    return blocked[None, None]
