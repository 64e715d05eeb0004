"""A tiny causal language model with random weights and a real tokenizer, made on the spot without any hub.

Random weights are the hardest test of constrained decoding: whatever such a model says in form, the grammar said.
"""

from __future__ import annotations

from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

CORPUS = [
    'model_id = [0, 1, 2]\nsubtasks = ["Solve the problem step by step.", "Check the answer."]',
    'access_list = [[], ["all"], [0, 1]]',
    '{"answer": "yes", "reason": "It is the sum of both numbers.", "steps": [1, 2, 3]}',
    "You are a helpful assistant. What is the capital of France? The capital of France is Paris.",
    "def add(first, second):\n    return first + second\n",
    "Äpfel, naïve façade, 東京, привет, 🙂",
] * 20


def make(folder: Path, *, context: int = 4096) -> Path:
    """Write the model and its tokenizer into `folder`: byte-level BPE, ChatML, Qwen2 with some 0.2 million weights."""
    tokenizer = _tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=context,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def make_adapter(model: Path, folder: Path) -> Path:
    """Write a LoRA adapter with random weights for the model in `model` into `folder`."""
    base = Qwen2ForCausalLM.from_pretrained(model)
    config = LoraConfig(r=8, lora_alpha=64, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(base, config).save_pretrained(folder)
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=trained,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL[1:2],
        chat_template=CHATML,
    )
