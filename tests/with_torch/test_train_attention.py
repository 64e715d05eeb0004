from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

from rl_conductor_training.train.policy import grouped_attention

# The second row is padded on the left.
TOKENS = torch.tensor([[5, 9, 20, 31, 7], [0, 0, 8, 10, 11]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])


def model(kind: str, *, shared: int) -> Any:
    torch.manual_seed(0)
    size: dict[str, Any] = {"vocab_size": 40, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2}
    config = LlamaConfig(**size, num_attention_heads=6, num_key_value_heads=shared)
    llama = LlamaForCausalLM._from_config(config, attn_implementation="eager")
    if kind == grouped_attention.NAME:
        grouped_attention.use_grouped_attention(llama)
    assert llama.config._attn_implementation == kind
    return llama


@pytest.mark.parametrize("shared", [1, 2, 6])
def test_grouped_attention_equals_eager_attention(shared: int) -> None:
    outputs = {}
    for kind in ("eager", grouped_attention.NAME):
        llama = model(kind, shared=shared)
        logits = llama(input_ids=TOKENS, attention_mask=MASK).logits[MASK.bool()]
        logits.square().sum().backward()
        outputs[kind] = [logits, *(weight.grad for weight in llama.parameters())]
    for eager, grouped in zip(*outputs.values(), strict=True):
        torch.testing.assert_close(grouped, eager)


@pytest.mark.parametrize("shared", [1, 2, 6])
def test_a_token_after_a_prompt_attends_to_all_of_it(shared: int) -> None:
    llama = model(grouped_attention.NAME, shared=shared).eval()
    complete = llama(input_ids=TOKENS, attention_mask=MASK).logits[:, -1]
    cache = llama(input_ids=TOKENS[:, :-1], attention_mask=MASK[:, :-1], use_cache=True).past_key_values
    last = llama(input_ids=TOKENS[:, -1:], attention_mask=MASK, past_key_values=cache).logits[:, -1]
    torch.testing.assert_close(last, complete)


def test_unsupported_models_keep_their_attention() -> None:
    size: dict[str, Any] = {"vocab_size": 40, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1}
    capped = Gemma2ForCausalLM(Gemma2Config(**size, num_attention_heads=6, num_key_value_heads=2, head_dim=4))
    before = capped.config._attn_implementation
    grouped_attention.use_grouped_attention(capped)
    assert capped.config._attn_implementation == before
