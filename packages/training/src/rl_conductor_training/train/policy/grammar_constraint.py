"""Constrains plans to a grammar: masks of allowed tokens for sampling, and for scoring sampled plans.

Under a grammar, tokens are sampled from `p_c(t) = p(t) / Z` for the allowed `t` and 0 for the others, where `Z` is the
probability that the model gives to all allowed tokens. So the loss needs the log-probabilities of this
distribution:

    log p_c = log p - log Z        and        d log p_c = d log p - d log Z

With `log p` alone, the gradient would push up all tokens that the grammar forced, and the ratio of new to old
probability would be that of a distribution that no plan was sampled from. Where only one token is allowed, `p_c` is 1
for any model: `log p_c` is 0 and has no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import xgrammar
from transformers import LogitsProcessor

from rl_conductor.models.in_process.chat_template import silent_tokens
from rl_conductor.models.transformers.vocabulary import vocabulary


class GrammarConstraint:
    """A grammar, compiled for the vocabulary of one model."""

    def __init__(self, tokenizer: Any, *, vocab_size: int, end_tokens: Sequence[int], gbnf: str) -> None:
        tokens = vocabulary(tokenizer, size=vocab_size, ends=end_tokens)
        self._gbnf = gbnf
        self._blocked_tokens = silent_tokens(tokenizer) - set(end_tokens)
        self._grammar = xgrammar.GrammarCompiler(tokens).compile_grammar(gbnf)
        self._vocab_size = vocab_size

    def new_matcher(self) -> xgrammar.GrammarMatcher:
        """Creates a matcher at the start of a plan."""
        return xgrammar.GrammarMatcher(self._grammar)

    def allocate_bitmask(self, rows: int) -> torch.Tensor:
        """Allocates bitmasks of allowed tokens for `rows` positions, with all bits set."""
        return xgrammar.allocate_token_bitmask(rows, self._vocab_size)

    def allowed_tokens(self, plan: Sequence[int]) -> torch.Tensor:
        """Computes the mask of allowed tokens at each position of `plan`: (length, vocabulary).

        Raises:
            RuntimeError: `plan` does not match the grammar.
        """
        bitmask = self.allocate_bitmask(len(plan))
        matcher = self.new_matcher()
        for position, token in enumerate(plan):
            matcher.fill_next_token_bitmask(bitmask, position)
            if not matcher.accept_token(token):
                raise RuntimeError(f"token {position} of a plan is outside the grammar that it was sampled under")
        return self.unpack_bitmask(bitmask)

    @property
    def vllm_options(self) -> dict[str, Any]:
        """Sampling options with which vLLM samples from the same distribution.

        vLLM matches special tokens by the text of their names, which a grammar allows wherever it allows free text. Its
        lowest bias leaves them a probability of e^-100.
        """
        bias = dict.fromkeys(sorted(self._blocked_tokens), -100.0)
        return {"structured_outputs": {"grammar": self._gbnf}, "logit_bias": bias}

    def unpack_bitmask(self, bitmask: torch.Tensor) -> torch.Tensor:
        """Converts bitmasks to booleans: (rows, vocabulary)."""
        shifts = torch.arange(8, dtype=torch.uint8)
        bits = bitmask.view(torch.uint8).unsqueeze(-1).bitwise_right_shift(shifts).bitwise_and(1)
        return bits.flatten(-2)[..., : self._vocab_size].bool()


class GrammarLogitsProcessor(LogitsProcessor):  # type: ignore[misc, unused-ignore]
    """Constrains a batch of plans to a grammar while they are sampled."""

    def __init__(self, grammar: GrammarConstraint, rows: int) -> None:
        self._matchers = [grammar.new_matcher() for _ in range(rows)]
        self._bitmask = grammar.allocate_bitmask(rows)
        self._grammar = grammar
        self._is_first_token = True

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Sets the scores of forbidden tokens to minus infinity."""
        if not self._is_first_token:
            self._accept(input_ids[:, -1].tolist())
        self._is_first_token = False
        for row, matcher in enumerate(self._matchers):
            if matcher.is_terminated():
                self._bitmask[row] = -1  # tokens after the end are padding
            else:
                matcher.fill_next_token_bitmask(self._bitmask, row)
        allowed = self._grammar.unpack_bitmask(self._bitmask).to(scores.device)
        return scores.masked_fill(~allowed, -torch.inf)

    def _accept(self, tokens: list[int]) -> None:
        for matcher, token in zip(self._matchers, tokens, strict=True):
            if not matcher.is_terminated() and not matcher.accept_token(token):
                raise RuntimeError("a token outside the grammar was sampled")
