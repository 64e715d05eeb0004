"""Feedback that LangChain programs send to a conductor's server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI

from langchain_conductor import ChatConductor, acreate_feedback, create_feedback, run_id
from rl_conductor import ConductorError, ConfigError, ScriptedModel
from rl_conductor_server.auth.key_secrets import hash_key
from server.conftest import Serve, empty_store, serve

__all__ = ["empty_store", "serve"]

KEYS = {"red": {"sha256": hash_key("red-key")}, "blue": {"sha256": hash_key("blue-key")}}


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A client that is closed in its event loop; LangChain's own are not."""
    async with httpx.AsyncClient() as client:
        yield client


@pytest.mark.parametrize("use_responses_api", [False, True])
async def test_an_answer_of_a_server_is_rated_by_one_call(
    serve: Serve, client: httpx.AsyncClient, *, use_responses_api: bool
) -> None:
    at = await serve(keys=KEYS)
    base_url = f"{at.url}/v1"
    chat = ChatOpenAI(
        model="conductor-mini",
        base_url=base_url,
        api_key="red-key",
        use_responses_api=use_responses_api,
        max_retries=0,
        http_async_client=client,
    )
    answer = await chat.ainvoke("Say something.")
    sent = await acreate_feedback(answer, score=0.5, comment="Fine.", base_url=base_url, api_key="red-key")
    again = await asyncio.to_thread(
        create_feedback, run_id(answer), "tone", score=1, base_url=at.url, api_key="red-key"
    )
    assert (sent.key, sent.score, sent.comment, sent.author) == ("user_score", 0.5, "Fine.", "red")
    (row,) = await at.service.store.list_runs()
    assert row.id == run_id(answer)
    assert await at.service.store.feedback.list(row.id) == [sent, again]


async def test_what_the_server_rejects_is_an_error_with_its_reason(serve: Serve, client: httpx.AsyncClient) -> None:
    at = await serve(keys=KEYS)
    chat = ChatOpenAI(model="conductor-mini", base_url=f"{at.url}/v1", api_key="red-key", http_async_client=client)
    answer = await chat.ainvoke("Say something.")
    with pytest.raises(ConfigError, match="rejected the feedback: there is no run 'run-"):
        await acreate_feedback(answer, score=1, base_url=at.url, api_key="blue-key")
    with pytest.raises(ConfigError, match="score must be less than or equal to 1"):
        await acreate_feedback(answer, score=2, base_url=at.url, api_key="red-key")


async def test_another_server_is_an_error() -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        running = asyncio.create_task(asyncio.to_thread(other.handle_request))
        with pytest.raises(ConductorError, match="is no conductor's server: status 501"):
            await acreate_feedback("run-0123456789abcdef", score=1, base_url=f"http://127.0.0.1:{other.server_port}")
        await running


async def test_a_server_that_is_gone_is_an_error() -> None:
    with pytest.raises(ConductorError, match="does not answer"):
        await acreate_feedback("run-0123456789abcdef", score=1, base_url="http://127.0.0.1:9/v1")


async def test_an_answer_of_this_process_has_a_run_id() -> None:
    plan = "model_id = [0]\nsubtasks = ['Say it.']\naccess_list = [[]]"
    answer = await ChatConductor({"a": ScriptedModel("hi")}, planner=ScriptedModel(plan)).ainvoke("Say something.")
    assert run_id(answer) == answer.response_metadata["conductor"]["run"]


def test_other_messages_have_no_run() -> None:
    for message in (AIMessage("hi"), AIMessage("hi", id="chatcmpl-1"), AIMessage("", response_metadata={"id": 3})):
        with pytest.raises(ConfigError, match="no run id"):
            run_id(message)
    with pytest.raises(ConfigError, match="is no run id"):
        create_feedback("../admin", score=1, base_url="http://127.0.0.1:9")
