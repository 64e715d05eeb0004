"""The tokens that a grammar may be spelled with.

XGrammar takes a special token for the text of its name, which is wherever a grammar leaves the words free. But replies
are read without special tokens, so that what was allowed would not be what is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xgrammar import TokenizerInfo, VocabType

from rl_conductor.models.transformers.chat_template import silent_tokens


def vocabulary(tokenizer: Any, *, size: int, ends: Sequence[int]) -> TokenizerInfo:
    """What XGrammar is to know of a Hugging Face tokenizer.

    Args:
        tokenizer: it.
        size: how many tokens the model gives a probability to.
        ends: the tokens that end a reply.
    """
    silent = silent_tokens(tokenizer)
    told = TokenizerInfo.from_huggingface(tokenizer, vocab_size=size, stop_token_ids=list(ends))
    words = [b"" if token in silent else word for token, word in enumerate(told.decoded_vocab)]
    return TokenizerInfo(
        words,
        VocabType.RAW,
        vocab_size=size,
        stop_token_ids=list(ends),
        add_prefix_space=told.add_prefix_space,
    )
