"""Attention for processors: several heads read the same keys where they lie.

The kinds that transformers brings copy keys and values once for each head that reads them. On a processor, which draws
plans one token at a time after long prompts, these copies take longer than all the rest of attention.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

NAME = "conductor_grouped"
KINDS = ("llama", "mistral", "qwen2", "qwen3")
"""The kinds of models whose attention this is; that of others also takes sinks, caps or biases."""


def grouped(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """What each place attends to: softmax(Q K^T * scaling + mask) V (arXiv 1706.03762), for grouped heads (2305.13245).

    Args:
        module: the layer that asks; only whether it is in training matters.
        query: (rows, heads, places, size).
        key: (rows, heads that are shared, places seen, size).
        value: as `key`.
        attention_mask: (rows, 1, places, places seen), added to what is softened.
        scaling: of the products.
        dropout: the share of the weights that is left out in training.

    Returns:
        (rows, places, heads, size), and no weights.
    """
    rows, heads, places, size = query.shape
    shared = key.shape[1]
    readers = query.reshape(rows, shared, -1, size)
    weights = (readers @ key.transpose(-1, -2) * scaling).view(rows, shared, -1, places, key.shape[-2])
    if attention_mask is not None:
        weights = weights + attention_mask.unsqueeze(2)
    weights = torch.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
    weights = torch.nn.functional.dropout(weights, p=dropout, training=module.training)
    found = weights.view(rows, shared, -1, key.shape[-2]) @ value
    return found.view(rows, heads, places, size).transpose(1, 2).contiguous(), None


def group(model: Any) -> None:
    """Have a model of one of these `KINDS` attend in this way; leave others as they are."""
    if model.config.model_type in KINDS:
        model.set_attn_implementation(NAME)


AttentionInterface.register(NAME, grouped)
AttentionMaskInterface.register(NAME, eager_mask)
