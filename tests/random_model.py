"""Tiny models with random weights and a real tokenizer, made on the spot without any hub: of text, and of images, too.

Random weights are the hardest test of constrained decoding: whatever such a model says in form, the grammar said.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3Processor,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
IMAGE = ["<image>", "<fake_token_around_image>", "<global-img>"]

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

THINKING = CHATML.replace("assistant\n{%", "assistant\n<think>\n{%")

WITH_IMAGES = CHATML.replace(
    "{{ message.content }}",
    "{% for part in message.content %}{{ '<image>' if part.type == 'image' else part.text }}{% endfor %}",
)

WITH_TOOLS = "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}" + CHATML.replace(
    "{{ message.content }}",
    "{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "</tool_call>{% endfor %}",
)

CORPUS = [
    'model_id = [0, 1, 2]\nsubtasks = ["Solve the problem step by step.", "Check the answer."]',
    'access_list = [[], ["all"], [0, 1]]',
    '{"answer": "yes", "reason": "It is the sum of both numbers.", "steps": [1, 2, 3]}',
    "You are a helpful assistant. What is the capital of France? The capital of France is Paris.",
    "def add(first, second):\n    return first + second\n",
    "Äpfel, naïve façade, 東京, привет, 🙂",
] * 20


def make(folder: Path, *, context: int = 4096, template: str = WITH_TOOLS) -> Path:
    """Write the model and its tokenizer into `folder`: byte-level BPE, ChatML, Qwen2 with some 0.2 million weights."""
    tokenizer = _tokenizer(SPECIAL, template)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(**_sizes(tokenizer, context=context))
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def make_seeing(folder: Path) -> Path:
    """Write a vision-language model into `folder`: Idefics3, which sees an image as four tokens."""
    tokenizer = _tokenizer(SPECIAL + IMAGE, WITH_IMAGES)
    edge = {"longest_edge": 32}
    images = Idefics3ImageProcessorPil(size=edge, max_image_size=edge, do_image_splitting=False)
    Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=WITH_IMAGES).save_pretrained(folder)
    torch.manual_seed(0)
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Idefics3Config(
        text_config={"model_type": "llama"} | _sizes(tokenizer, context=4096),
        vision_config=vision | {"image_size": 32, "patch_size": 8},
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE[0]),
        scale_factor=2,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Idefics3ForConditionalGeneration(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    return folder


def _sizes(tokenizer: PreTrainedTokenizerFast, *, context: int) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": context,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }


def make_adapter(model: Path, folder: Path) -> Path:
    """Write a LoRA adapter with random weights for the model in `model` into `folder`."""
    base = Qwen2ForCausalLM.from_pretrained(model)
    config = LoraConfig(r=8, lora_alpha=64, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(base, config).save_pretrained(folder)
    return folder


def _tokenizer(special: list[str], template: str) -> PreTrainedTokenizerFast:
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=trained,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[token for token in special if token not in ("<|endoftext|>", "<|im_end|>")],
        chat_template=template,
    )
