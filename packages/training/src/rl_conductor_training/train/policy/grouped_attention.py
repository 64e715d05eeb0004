"""Grouped-query attention for CPUs, which doesn't copy shared keys and values.

The implementations in transformers copy keys and values once for each head that reads them. On a CPU that samples plans
one token at a time after long prompts, these copies take longer than the rest of attention.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

NAME = "conductor_grouped"
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
"""The supported model types; the attention of others also has sinks, soft caps or biases."""


def grouped_attention(
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
    """Computes softmax(Q K^T * scaling + mask) V (arXiv 1706.03762) for grouped heads (arXiv 2305.13245).

    Args:
        module: the attention layer; only its `training` flag is read.
        query: (rows, heads, positions, head size).
        key: (rows, key-value heads, key positions, head size).
        value: as `key`.
        attention_mask: (rows, 1, positions, key positions), added before the softmax.
        scaling: factor of the products.
        dropout: share of the weights that is dropped in training.

    Returns:
        (rows, positions, heads, head size), and no attention weights.
    """
    rows, heads, positions, head_size = query.shape
    kv_heads = key.shape[1]
    grouped_query = query.reshape(rows, kv_heads, -1, head_size)
    weights = (grouped_query @ key.transpose(-1, -2) * scaling).view(rows, kv_heads, -1, positions, key.shape[-2])
    if attention_mask is not None:
        weights = weights + attention_mask.unsqueeze(2)
    weights = torch.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
    weights = torch.nn.functional.dropout(weights, p=dropout, training=module.training)
    output = weights.view(rows, kv_heads, -1, key.shape[-2]) @ value
    return output.view(rows, heads, positions, head_size).transpose(1, 2).contiguous(), None


def use_grouped_attention(model: Any) -> None:
    """Switches a model of one of the `MODEL_TYPES` to this attention; leaves others unchanged."""
    if model.config.model_type in MODEL_TYPES:
        model.set_attn_implementation(NAME)


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, eager_mask)
