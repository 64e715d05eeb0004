"""Reasoning that a vendor's server leaves in the text never reaches who asks, nor another worker."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from langchain_conductor.pool import pool_of
from rl_conductor.models.openai.adapter import OpenAIModel
from rl_conductor.pool.pool import WorkerPool
from server.conftest import TWO_STEPS, At, Serve
from server.upstream import Vendor, vendor

OPENED = "<think>\nsecret musings\n</think>\n\nIt is 4."
UNOPENED = "secret musings</think>It is 4."
MISTRAL = "[THINK]secret musings[/THINK]It is 4."
HARMONY = (
    "<|channel|>analysis<|message|>secret musings<|end|><|start|>assistant<|channel|>final<|message|>It is 4.<|return|>"
)
MESSAGES: Any = [{"role": "user", "content": "What is 2 + 2?"}]


@pytest.fixture
async def upstream() -> AsyncGenerator[Vendor, None]:
    async with vendor(r1=UNOPENED, plain="It is 4.") as made:
        yield made


async def answers(at: At) -> tuple[str, str, str]:
    """The answer whole, the pieces of one that is streamed, and what the trace keeps of it."""
    client = at.openai()
    whole = await client.chat.completions.create(model="conductor-mini", messages=MESSAGES)
    stream = await client.chat.completions.create(model="conductor-mini", messages=MESSAGES, stream=True)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    runs = (await at.http.get("/v1/runs")).text
    return whole.choices[0].message.content or "", "".join(pieces), runs


@pytest.mark.parametrize("text", [OPENED, UNOPENED, MISTRAL, HARMONY])
async def test_the_text_of_an_openai_compatible_server_is_split(serve: Serve, upstream: Vendor, text: str) -> None:
    upstream.says["r1"] = text
    model = OpenAIModel("r1", base_url=upstream.url)
    at = await serve(pool=WorkerPool({"a": model}))
    assert (await answers(at))[:2] == ("It is 4.", "It is 4.")


@pytest.mark.parametrize("text", [OPENED, UNOPENED, MISTRAL, HARMONY])
async def test_the_text_of_a_langchain_model_is_split(serve: Serve, upstream: Vendor, text: str) -> None:
    upstream.says["r1"] = text
    model = ChatOpenAI(model="r1", base_url=upstream.url, api_key=SecretStr("none"))
    at = await serve(pool=pool_of({"a": model}))
    assert (await answers(at))[:2] == ("It is 4.", "It is 4.")


async def test_a_first_answer_that_is_not_streamed_is_split_by_its_whole_text(serve: Serve, upstream: Vendor) -> None:
    at = await serve(pool=WorkerPool({"a": OpenAIModel("r1", base_url=upstream.url)}))
    reply = await at.openai().chat.completions.create(model="conductor-mini", messages=MESSAGES)
    assert reply.choices[0].message.content == "It is 4."


async def test_a_server_that_is_declared_to_leave_reasoning_unopened_shows_none_of_its_first_stream(
    serve: Serve, upstream: Vendor
) -> None:
    model = OpenAIModel("r1", base_url=upstream.url, reasoning_start="inside")
    at = await serve(pool=WorkerPool({"a": model}))
    stream = await at.openai().chat.completions.create(model="conductor-mini", messages=MESSAGES, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]) == "It is 4."


async def test_reasoning_of_a_server_reaches_no_other_worker(serve: Serve, upstream: Vendor) -> None:
    shown: list[str] = []

    def last(body: dict[str, Any]) -> str:
        shown.append(str(body["messages"]))
        return "It is 4."

    upstream.says["plain"] = last
    models = {"a": OpenAIModel("r1", base_url=upstream.url), "b": OpenAIModel("plain", base_url=upstream.url)}
    at = await serve(pool=WorkerPool(models), planner=TWO_STEPS)
    assert (await answers(at))[:2] == ("It is 4.", "It is 4.")
    assert all("It is 4." in one and "secret" not in one for one in shown)
    assert len(shown) == 2
