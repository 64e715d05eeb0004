"""Behaviour that all adapters share."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import get_args

import pytest

from rl_conductor.errors import BadRequestError, BadResponseError, ConfigError
from rl_conductor.models import Capabilities, Model, model, providers
from rl_conductor.models.base import collect, require
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.types import Delta, FilePart, Grammar, ImagePart, JsonFormat, Message, Request, Tool
from rl_conductor.types.requests import Need

EVERYTHING = Request(
    messages=(Message.user("hi", ImagePart(data="AA=="), FilePart(data="AA==")),), tools=(Tool(name="clock"),)
)


# -------------------------------------------------------------------------------------------- naming


@pytest.mark.parametrize("name", ["openai", "openai:"])
def test_the_name_of_a_provider_alone_is_refused_with_how_to_name_its_models(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^no model '{name}': openai is a provider; .* as 'openai:MODEL'$"):
        model(name)


@pytest.mark.parametrize("name", ["gpt-5", "nobody:gpt-5", "", ":"])
def test_a_name_without_a_known_provider_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(ConfigError, match=r"'provider:model'.*anthropic, .*vllm-server"):
        model(name)


def test_a_models_own_name_may_hold_colons() -> None:
    assert model("ollama:qwen3:8b").name == "ollama:qwen3:8b"


@pytest.mark.parametrize("provider", ["anthropic", "google", "ollama", "openai", "openrouter", "vllm-server"])
def test_each_service_is_made_by_its_name(provider: str) -> None:
    made = model(f"{provider}:m", api_key="k")
    assert isinstance(made, Model)
    assert made.name == f"{provider}:m"
    assert provider in providers()


# ------------------------------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("able", "lacking"),
    [
        (Capabilities(images=True, files=True), "tools"),
        (Capabilities(tools=True, files=True), "images"),
        (Capabilities(tools=True, images=True), "files"),
    ],
)
def test_a_lacking_capability_is_named(able: Capabilities, lacking: str) -> None:
    with pytest.raises(BadRequestError, match=f"can't take {lacking}$"):
        require(ScriptedModel("hi", capabilities=able), EVERYTHING)


@pytest.mark.parametrize(
    ("form", "lacking"), [(JsonFormat(), "a JSON schema"), (Grammar(gbnf='root ::= "a"'), "a grammar")]
)
def test_a_lacking_format_is_named(form: JsonFormat | Grammar, lacking: str) -> None:
    with pytest.raises(BadRequestError, match=f"can't take {lacking}$"):
        require(ScriptedModel("hi", capabilities=Capabilities()), Request(messages=(), response_format=form))


def test_the_needs_of_requests_are_capabilities() -> None:
    assert {*get_args(Need)} <= Capabilities.model_fields.keys()
    assert EVERYTHING.needs == ("tools", "images", "files")


def test_a_plain_request_needs_no_capability() -> None:
    require(ScriptedModel("hi", capabilities=Capabilities()), Request.user("hi"))


# -------------------------------------------------------------------------------------------- replies


async def test_collecting_a_broken_stream_is_a_bad_response() -> None:
    async def broken() -> AsyncGenerator[Delta, None]:
        yield Delta(text="hi")

    with pytest.raises(BadResponseError, match="ended before"):
        await collect(broken())
