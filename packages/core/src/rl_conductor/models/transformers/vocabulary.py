"""Builds XGrammar's vocabulary without special tokens.

XGrammar matches a special token by the text of its name, wherever a grammar allows free text. Replies are decoded
without special tokens, so the decoded text would not match the grammar.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xgrammar import TokenizerInfo, VocabType

from rl_conductor.models.in_process.chat_template import silent_tokens


def vocabulary(tokenizer: Any, *, size: int, ends: Sequence[int]) -> TokenizerInfo:
    """Builds the XGrammar vocabulary of a Hugging Face tokenizer, with empty text for silent tokens.

    Args:
        tokenizer: the tokenizer of the model.
        size: number of logits of the model.
        ends: ids of the tokens that end a reply.
    """
    silent = silent_tokens(tokenizer)
    info = TokenizerInfo.from_huggingface(tokenizer, vocab_size=size, stop_token_ids=list(ends))
    token_bytes = [b"" if token in silent else raw for token, raw in enumerate(info.decoded_vocab)]
    return TokenizerInfo(
        token_bytes,
        VocabType.RAW,
        vocab_size=size,
        stop_token_ids=list(ends),
        add_prefix_space=info.add_prefix_space,
    )
