"""LlamaIndex's own models of OpenAI, which need an openai that the main environment does not have, as workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core.constants import DEFAULT_CONTEXT_WINDOW
from llama_index.core.llms import LLMMetadata
from llama_index.llms.openai import OpenAI

from core.models.wire.base import SECRET, Counts, Said, Seen
from core.models.wire.openai import OpenAIWire
from llama_index.llms.conductor import LLMModel
from rl_conductor import Request
from rl_conductor.integration import price_of
from rl_conductor.types import JsonFormat

QUESTION = Request.user("Tell a story.")
REFUSAL = "I can't help with that."
CUT_OFF = Said(
    pieces=("Once upon", " a"), finish="length", counts=Counts(input=100, cached=90, output=5000, reasoning=4900)
)


class Vendor(OpenAIWire):
    """Replies that are cut off or refused, whatever the model."""

    def whole(self, seen: Seen, said: Said) -> Any:
        """A `chat.completion`; a refusal if the question asks for a weapon."""
        completion = super().whole(seen, CUT_OFF)
        if "weapon" in seen.text:
            completion["choices"][0]["message"] = {"role": "assistant", "content": None, "refusal": REFUSAL}
        return completion

    def events(self, seen: Seen, said: Said) -> list[str]:
        """Its chunks, of which the last has only the usage, and is sent only if requested."""
        *chunks, usage, done = super().events(seen, CUT_OFF)
        is_requested = self.last.body.get("stream_options", {}).get("include_usage")
        return [*chunks, usage, done] if is_requested else [*chunks, done]


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    with Vendor.running() as service:
        yield service


@pytest.fixture
def model(vendor: Vendor) -> LLMModel:
    return LLMModel(OpenAI(model="gpt-4.1", api_base=f"{vendor.url}/v1", api_key=SECRET, max_retries=0))


async def test_a_reply_that_was_cut_off_says_so(model: LLMModel) -> None:
    completion = await model.complete(QUESTION)
    assert (completion.text, completion.finish_reason) == ("Once upon a", "length")


async def test_a_stream_that_was_cut_off_says_so(model: LLMModel) -> None:
    *_, last = [delta async for delta in model.stream(QUESTION)]
    assert last.completion is not None
    assert (last.completion.text, last.completion.finish_reason) == ("Once upon a", "length")


@pytest.mark.parametrize("stream", [False, True])
async def test_the_reported_usage_is_counted_with_its_details(model: LLMModel, *, stream: bool) -> None:
    if stream:
        *_, last = [delta async for delta in model.stream(QUESTION)]
        completion = last.completion
    else:
        completion = await model.complete(QUESTION)
    assert completion is not None
    usage = completion.usage
    assert (usage.input_tokens, usage.cached_tokens) == (100, 90)
    assert (usage.output_tokens, usage.reasoning_tokens) == (5000, 4900)


async def test_the_users_own_stream_options_take_precedence(vendor: Vendor) -> None:
    options = {"stream_options": {"include_usage": True, "include_obfuscation": False}}
    llm = OpenAI(model="gpt-4.1", api_base=f"{vendor.url}/v1", api_key=SECRET, additional_kwargs=options)
    [delta async for delta in LLMModel(llm).stream(QUESTION)]
    assert vendor.last.body["stream_options"] == options["stream_options"]


async def test_the_text_of_a_refusal_is_the_reply(model: LLMModel) -> None:
    completion = await model.complete(Request.user("Build a weapon."))
    assert (completion.text, completion.finish_reason) == (REFUSAL, "content_filter")


def test_the_published_price_is_the_default() -> None:
    assert LLMModel(OpenAI(model="gpt-4.1", api_key=SECRET)).price == price_of("openai", "gpt-4.1")


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CLOSED = {**SCHEMA, "additionalProperties": False}


@pytest.mark.parametrize(
    ("requested", "sent"),
    [
        (JsonFormat(), {"type": "json_object"}),
        (
            JsonFormat(name="place", json_schema=SCHEMA),
            {"type": "json_schema", "json_schema": {"name": "place", "schema": CLOSED, "strict": True}},
        ),
    ],
)
async def test_a_json_format_reaches_the_vendor(
    model: LLMModel, vendor: Vendor, requested: JsonFormat, sent: Any
) -> None:
    request = QUESTION.model_copy(update={"response_format": requested})
    await model.complete(request)
    assert vendor.last.body["response_format"] == sent
    [delta async for delta in model.stream(request)]
    assert vendor.last.body["response_format"] == sent


def test_only_models_with_structured_output_offer_it() -> None:
    assert LLMModel(OpenAI(model="gpt-4.1", api_key=SECRET)).capabilities.json_schema
    assert not LLMModel(OpenAI(model="gpt-4-turbo", api_key=SECRET)).capabilities.json_schema


class Compatible(OpenAI):  # type: ignore[misc]  # its package is only in the environment of these tests
    """A model of a server with OpenAI's protocol, whose context window is LlamaIndex's default, as `OpenAILike` has."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=DEFAULT_CONTEXT_WINDOW, is_chat_model=True, model_name=self.model)


async def test_a_server_whose_context_window_is_unknown_gets_long_requests(vendor: Vendor) -> None:
    model = LLMModel(Compatible(model="house", api_base=f"{vendor.url}/v1", api_key=SECRET))
    assert model.capabilities.context is None
    assert (await model.complete(Request.user("word " * 20_000))).text == "Once upon a"
