from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from engine_behaviours import LISTS, SCHEMA, asking
from rl_conductor import models
from rl_conductor.errors import BadRequestError, ContextLengthError, ModelError, ModelTimeoutError
from rl_conductor.models.openai.services import VLLMServerModel
from rl_conductor.types import Grammar, JsonFormat

from .serving import Server

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


@pytest.fixture
async def model(server: Server) -> AsyncIterator[VLLMServerModel]:
    model = VLLMServerModel("tiny", base_url=f"{server.url}/v1")
    yield model
    await model.aclose()


ENDLESS = asking("Go on and on.", max_tokens=32_000, form=Grammar(gbnf="root ::= [a-z] root"))
"""Takes more than a minute."""


async def _has_running(server: Server, count: int) -> bool:
    """Whether the server comes to have `count` requests running, long before an endless reply ends."""
    deadline = time.monotonic() + 50  # a server that decodes without end answers others late on busy cores
    while time.monotonic() < deadline:
        if await asyncio.to_thread(server.metric, "vllm:num_requests_running") == count:
            return True
        await asyncio.sleep(0.05)
    return False


async def test_a_reply_has_usage_and_finish_reason(model: VLLMServerModel) -> None:
    reply = await model.complete(asking(max_tokens=9))
    assert reply.finish_reason == "length"
    assert (reply.usage.output_tokens, reply.usage.calls) == (9, 1)
    assert reply.usage.cost == 0
    assert reply.usage.input_tokens > 8


async def test_the_stream_adds_up_to_the_reply(model: VLLMServerModel) -> None:
    deltas = [delta async for delta in model.stream(asking())]
    streamed = deltas[-1].completion
    assert streamed is not None
    assert sum(bool(delta.text) for delta in deltas) > 1  # a busy engine joins pieces
    assert "".join(delta.text for delta in deltas) == streamed.text == (await model.complete(asking())).text
    assert streamed.usage.output_tokens == 24


@pytest.mark.parametrize("seed", range(4))
async def test_every_sample_matches_the_grammar(model: VLLMServerModel, seed: int) -> None:
    reply = await model.complete(asking(form=Grammar(gbnf=LISTS), temperature=1.0, seed=seed, max_tokens=100))
    assert re.fullmatch(r"model_id = \[[0-2](, [0-2]){0,4}\]", reply.text)
    assert reply.finish_reason == "stop"


@pytest.mark.parametrize("seed", range(4))
async def test_every_sample_matches_the_json_schema(model: VLLMServerModel, seed: int) -> None:
    form = JsonFormat(json_schema=SCHEMA)
    reply = json.loads((await model.complete(asking(form=form, temperature=1.0, seed=seed, max_tokens=300))).text)
    assert reply["worker"] in ("coder", "writer")


async def test_sixteen_concurrent_requests_get_their_own_answers(model: VLLMServerModel) -> None:
    forms = [Grammar(gbnf=f'root ::= "{number}: " [a-z]{{5,9}}') for number in range(16)]
    replies = await asyncio.gather(*(model.complete(asking(form=form, temperature=1.0)) for form in forms))
    assert all(re.fullmatch(rf"{number}: [a-z]{{5,9}}", reply.text) for number, reply in enumerate(replies))


async def test_cancelling_reaches_the_server(model: VLLMServerModel, server: Server) -> None:
    call = asyncio.create_task(model.complete(ENDLESS))
    assert await _has_running(server, 1)
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    assert await _has_running(server, 0)


async def test_leaving_a_stream_reaches_the_server(model: VLLMServerModel, server: Server) -> None:
    async with aclosing(model.stream(ENDLESS)) as deltas:
        await anext(deltas)
        assert await _has_running(server, 1)
    assert await _has_running(server, 0)


async def test_a_timeout_reaches_the_server(model: VLLMServerModel, server: Server) -> None:
    with pytest.raises(ModelTimeoutError):
        await model.complete(ENDLESS.model_copy(update={"timeout": 2.0}))
    assert await _has_running(server, 0)


async def test_an_invalid_grammar_is_rejected(model: VLLMServerModel) -> None:
    with pytest.raises(BadRequestError):
        await model.complete(asking(form=Grammar(gbnf="root ::= missing")))


async def test_a_conversation_that_is_too_long_raises_a_context_error(model: VLLMServerModel) -> None:
    with pytest.raises(ContextLengthError):
        await model.complete(asking("word " * 40_000))


async def test_a_model_that_is_not_served_is_a_model_error(server: Server) -> None:
    model = models.model("vllm-server:other", base_url=f"{server.url}/v1")
    with pytest.raises(ModelError, match="other"):
        await model.complete(asking())
    await model.aclose()
