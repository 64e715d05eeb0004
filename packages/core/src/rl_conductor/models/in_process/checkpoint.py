"""Capabilities of a local checkpoint, read from its configuration without loading weights. Requires transformers."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from rl_conductor.models.base import Capabilities
from rl_conductor.models.in_process.capabilities import in_process_capabilities
from rl_conductor.models.in_process.chat_template import ChatTemplate


def sees_images(config: Any) -> bool:
    """Returns whether `config` is the configuration of a vision-language model."""
    return type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def expected_capabilities(source: str) -> Capabilities:
    """Returns the capabilities of a checkpoint; all of them if it is not downloaded yet."""
    try:
        config = AutoConfig.from_pretrained(source, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
    except (OSError, ValueError, ImportError):
        return in_process_capabilities(tools=True, images=True)
    return ChatTemplate(tokenizer, parts=sees_images(config)).capabilities
