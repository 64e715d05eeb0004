"""Plans held to a grammar: which tokens may come next while they are drawn, and which could have when they are scored.

Under a grammar the tokens are drawn from `p_c(t) = p(t) / Z` for the allowed `t` and 0 for the others, where `Z` is
the probability that the model itself gives to all allowed tokens. So this is the distribution whose log-probabilities
belong into the loss:

    log p_c = log p - log Z        and        d log p_c = d log p - d log Z

With `log p` alone, the gradient would push up all that the grammar forced, and the ratio of new to old probability
would be that of a distribution that nothing was drawn from. Where one token only is allowed, `p_c` is 1 whatever the
model thinks: `log p_c` is 0 and has no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import xgrammar
from transformers import LogitsProcessor

from rl_conductor.models.chat_template import silent_tokens
from rl_conductor.models.vocabulary import vocabulary


class Held:
    """A grammar, compiled for one model's tokens."""

    def __init__(self, tokenizer: Any, *, vocab_size: int, ends: Sequence[int], gbnf: str) -> None:
        tokens = vocabulary(tokenizer, size=vocab_size, ends=ends)
        self._gbnf = gbnf
        self._barred = silent_tokens(tokenizer) - set(ends)
        self._grammar = xgrammar.GrammarCompiler(tokens).compile_grammar(gbnf)
        self._vocab_size = vocab_size

    def matcher(self) -> xgrammar.GrammarMatcher:
        """A plan that has not begun."""
        return xgrammar.GrammarMatcher(self._grammar)

    def bits(self, rows: int) -> torch.Tensor:
        """Room for the allowed tokens of `rows` places, a bit each, all of them set."""
        return xgrammar.allocate_token_bitmask(rows, self._vocab_size)

    def allowed(self, plan: Sequence[int]) -> torch.Tensor:
        """For each token of `plan`, which ones were allowed in its place: (length, vocabulary)."""
        bits = self.bits(len(plan))
        matcher = self.matcher()
        for place, token in enumerate(plan):
            matcher.fill_next_token_bitmask(bits, place)
            if not matcher.accept_token(token):
                raise RuntimeError(f"token {place} of a plan that was held to the grammar is outside of it")
        return self.spread(bits)

    @property
    def for_vllm(self) -> dict[str, Any]:
        """What vLLM is told so that it draws what this admits.

        It takes special tokens for the text of their names, which stands wherever a grammar leaves the words free. The
        least bias that it knows leaves them a probability of e^-100.
        """
        bias = dict.fromkeys(sorted(self._barred), -100.0)
        return {"structured_outputs": {"grammar": self._gbnf}, "logit_bias": bias}

    def spread(self, bits: torch.Tensor) -> torch.Tensor:
        """Bits as booleans."""
        places = torch.arange(8, dtype=torch.uint8)
        single = bits.view(torch.uint8).unsqueeze(-1).bitwise_right_shift(places).bitwise_and(1)
        return single.flatten(-2)[..., : self._vocab_size].bool()


class Drawing(LogitsProcessor):  # type: ignore[misc, unused-ignore]
    """Holds a batch of plans to a grammar while they are drawn."""

    def __init__(self, held: Held, rows: int) -> None:
        self._matchers = [held.matcher() for _ in range(rows)]
        self._bits = held.bits(rows)
        self._held = held
        self._begun = False

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The scores, with those of forbidden tokens at minus infinity."""
        if self._begun:
            self._accept(input_ids[:, -1].tolist())
        self._begun = True
        for row, matcher in enumerate(self._matchers):
            if matcher.is_terminated():
                self._bits[row] = -1  # what is drawn after the end is padding
            else:
                matcher.fill_next_token_bitmask(self._bits, row)
        allowed = self._held.spread(self._bits).to(scores.device)
        return scores.masked_fill(~allowed, -torch.inf)

    def _accept(self, tokens: list[int]) -> None:
        for matcher, token in zip(self._matchers, tokens, strict=True):
            if not matcher.is_terminated() and not matcher.accept_token(token):
                raise RuntimeError("a token outside the grammar was drawn")
