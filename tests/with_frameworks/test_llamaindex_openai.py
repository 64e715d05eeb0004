"""LlamaIndex's own models of OpenAI, which need an openai that the main environment does not have, as workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.llms.openai import OpenAI

from core.models.wire.base import SECRET, Said, Seen
from core.models.wire.openai import OpenAIWire
from llama_index.llms.conductor import LLMModel
from rl_conductor import Message, Request

QUESTION = Request(messages=(Message.user("Tell a story."),))
CUT_OFF = Said(pieces=("Once upon", " a"), finish="length")


class Vendor(OpenAIWire):
    """Replies that are cut off, whatever the model."""

    def whole(self, seen: Seen, said: Said) -> Any:
        """A `chat.completion`."""
        return super().whole(seen, CUT_OFF)

    def events(self, seen: Seen, said: Said) -> list[str]:
        """Its chunks, of which the last has only the usage."""
        return super().events(seen, CUT_OFF)


@pytest.fixture
def model() -> Iterator[LLMModel]:
    with Vendor.running() as vendor:
        yield LLMModel(OpenAI(model="gpt-4.1", api_base=f"{vendor.url}/v1", api_key=SECRET, max_retries=0))


async def test_a_reply_that_was_cut_off_says_so(model: LLMModel) -> None:
    completion = await model.complete(QUESTION)
    assert (completion.text, completion.finish_reason) == ("Once upon a", "length")


async def test_a_stream_that_was_cut_off_says_so(model: LLMModel) -> None:
    *_, last = [delta async for delta in model.stream(QUESTION)]
    assert last.completion is not None
    assert (last.completion.text, last.completion.finish_reason) == ("Once upon a", "length")
