"""Log-probabilities of plans under the distribution they were sampled from (see `grammar_constraint`).

The common prefix of the prompts is computed once, and the rest of each on top of its cached keys and values: a prompt
is several times longer than a plan, so for a group of eight that is a quarter of the work.

A vocabulary has some 150,000 tokens, so probabilities over all of it are large. They are computed in float32 for a few
positions at a time, and again in the backward pass instead of being kept. With `chunk`, the same holds for the logits,
so the largest tensor of a micro-batch no longer grows with the number of its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from accelerate.utils import extract_model_from_parallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from rl_conductor.errors import ConfigError
from rl_conductor_training.train.policy.grammar_constraint import GrammarConstraint

CHUNK = 256
"""Positions whose probabilities are in memory in float32 at the same time."""
TOLERANCE = {"rtol": 0.02, "atol": 0.05}
"""Differences between logits of two bfloat16 computations of one position."""

Head = Callable[[torch.Tensor], torch.Tensor]
"""Computes logits from the rows of a tensor."""


class TokenLogProbs(NamedTuple):
    """Log-probability and entropy of each token of a plan."""

    log_probs: torch.Tensor
    entropies: torch.Tensor
    """Entropies in nats, without a gradient."""

    def at(self, positions: torch.Tensor, *, length: int) -> TokenLogProbs:
        """Returns the results of `length` tokens, with these at `positions`; the others were forced and have 0."""
        zeros = self.log_probs.new_zeros(length)
        positions = positions.to(zeros.device)
        return TokenLogProbs(*(zeros.index_put((positions,), values) for values in self))


def plan_logprobs(
    model: Any,
    prompts: Sequence[Sequence[int]],
    plans: Sequence[Sequence[int]],
    *,
    temperature: float,
    grammar: GrammarConstraint | None,
    share_prefix: bool = True,
    chunk: int | None = None,
) -> list[TokenLogProbs]:
    """Computes the log-probabilities of each plan, given the prompt at its position.

    Args:
        model: a causal language model.
        prompts: the tokens of the prompts.
        plans: the tokens of the plans; none is empty.
        temperature: the temperature that the plans were sampled at.
        grammar: the grammar that they were sampled under.
        share_prefix: compute the common prefix of the prompts once; not possible with gradient checkpointing.
        chunk: number of positions whose logits are in memory at the same time; all of them by default.

    Raises:
        ConfigError: `chunk` is given, but the model's logits are not a layer on top of its last hidden states.
    """
    masks = [grammar.allowed_tokens(plan) if grammar else None for plan in plans]
    choices = [_choice_positions(plan, mask) for plan, mask in zip(plans, masks, strict=True)]
    prefix_length = _common_prefix_length(prompts) if share_prefix else 0
    read = _logits if chunk is None else _hidden_states
    rows, head = read(model, prompts, plans, choices, prefix_length=prefix_length)
    return [
        _token_logprobs(
            row,
            head,
            torch.tensor(plan)[positions],
            None if mask is None else mask[positions],
            temperature=temperature,
            chunk=chunk or CHUNK,
        ).at(positions, length=len(plan))
        for row, plan, mask, positions in zip(rows, plans, masks, choices, strict=True)
    ]


def _choice_positions(plan: Sequence[int], mask: torch.Tensor | None) -> torch.Tensor:
    """Returns the positions at which more than one token was allowed."""
    if mask is None:
        return torch.arange(len(plan))
    return (mask.sum(-1) > 1).nonzero().squeeze(-1)


def _token_logprobs(
    rows: torch.Tensor,
    head: Head,
    tokens: torch.Tensor,
    allowed: torch.Tensor | None,
    *,
    temperature: float,
    chunk: int,
) -> TokenLogProbs:
    """Computes the results of `tokens` from the rows that `head` computes their logits from."""
    results = []
    for start in range(0, max(len(tokens), 1), chunk):
        part = slice(start, start + chunk)
        mask = None if allowed is None else allowed[part].to(rows.device)
        arguments = (rows[part], head, tokens[part].to(rows.device), mask, temperature)
        results.append(
            checkpoint(_chunk_logprobs, *arguments, use_reentrant=False, preserve_rng_state=False)
            if torch.is_grad_enabled()
            else _chunk_logprobs(*arguments)
        )
    return TokenLogProbs(*map(torch.cat, zip(*results, strict=True)))


def _chunk_logprobs(
    rows: torch.Tensor, head: Head, tokens: torch.Tensor, allowed: torch.Tensor | None, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = head(rows).float() / temperature
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -torch.inf)
    all_log_probs = logits.log_softmax(-1)
    entropies = torch.special.entr(all_log_probs.detach().exp()).sum(-1)
    return all_log_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1), entropies


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
) -> tuple[list[torch.Tensor], Head]:
    """Computes the logits at the `choices` of each plan: (positions, vocabulary)."""
    row_positions = _row_positions(prompts, choices, prefix_length)
    all_positions = torch.cat(row_positions).unique()
    logits = _forward(model, prompts, plans, prefix_length, logits_to_keep=all_positions.to(model.device)).logits
    rows = [
        row[torch.searchsorted(all_positions, positions).to(model.device)]
        for row, positions in zip(logits, row_positions, strict=True)
    ]
    return rows, lambda row: row


def _hidden_states(
    model: Any,
    prompts: Sequence[Sequence[int]],
    plans: Sequence[Sequence[int]],
    choices: Sequence[torch.Tensor],
    *,
    prefix_length: int,
) -> tuple[list[torch.Tensor], Head]:
    """Computes the last hidden states at the `choices` of each plan, and returns the layer that makes them logits."""
    output = _forward(model, prompts, plans, prefix_length, logits_to_keep=1, output_hidden_states=True)
    hidden, head = output.hidden_states[-1], extract_model_from_parallel(model).get_output_embeddings()
    with torch.no_grad():
        if not torch.allclose(head(hidden[:, -1:]).float(), output.logits.float(), **TOLERANCE):
            raise ConfigError(
                "grpo.loss_chunk does not support this model, which changes the logits after its last layer: leave it"
                " out"
            )
    rows = [
        row[positions.to(row.device)]
        for row, positions in zip(hidden, _row_positions(prompts, choices, prefix_length), strict=True)
    ]
    return rows, head


def _row_positions(
    prompts: Sequence[Sequence[int]], choices: Sequence[torch.Tensor], prefix_length: int
) -> list[torch.Tensor]:
    """Returns the positions in each row, without the prefix, that predict the tokens at `choices` of its plan."""
    return [len(prompt) - prefix_length - 1 + positions for prompt, positions in zip(prompts, choices, strict=True)]


def _forward(
    model: Any, prompts: Sequence[Sequence[int]], plans: Sequence[Sequence[int]], prefix_length: int, **options: Any
) -> Any:
    """Runs the model on the prompts and plans, without the prefix and without the last token."""
    rows = [torch.tensor([*prompt, *plan][prefix_length:-1]) for prompt, plan in zip(prompts, plans, strict=True)]
    # Padding is on the right, where causal attention doesn't see it.
    return model(
        input_ids=pad_sequence(rows, batch_first=True).to(model.device),
        past_key_values=_prefix_cache(model, prompts[0][:prefix_length], rows=len(rows)) if prefix_length else None,
        use_cache=False,
        **options,
    )


def _prefix_cache(model: Any, tokens: Sequence[int], *, rows: int) -> Any:
    """Computes the keys and values of `tokens`, repeated for each row."""
    input_ids = torch.tensor([tokens], device=model.device)
    cache = model(input_ids=input_ids, use_cache=True, logits_to_keep=1).past_key_values
    cache.batch_repeat_interleave(rows)
    return cache
