"""What a checkpoint on this machine can take, known without its weights. It needs transformers."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from rl_conductor.models.base import Capabilities
from rl_conductor.models.transformers.chat_template import ChatTemplate, able


def sees_images(config: Any) -> bool:
    """Whether it is the configuration of a vision-language model."""
    return type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def expected(source: str) -> Capabilities:
    """What the checkpoint can take. One that is not on this machine yet is expected to take all until it is loaded."""
    try:
        config = AutoConfig.from_pretrained(source, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
    except (OSError, ValueError, ImportError):
        return able(tools=True, images=True)
    return ChatTemplate(tokenizer, parts=sees_images(config)).capabilities
