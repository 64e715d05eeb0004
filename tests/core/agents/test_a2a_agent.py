"""`A2AAgent`: agents of the A2A SDK's own server as workers."""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from a2a.types.a2a_pb2 import Artifact, Part, Task, TaskState, TaskStatus
from google.protobuf.json_format import MessageToDict

import a2a_agents
import mcp_shop
from core.runs import SOON, plan
from rl_conductor import Conductor, ConfigError, Limits, Price, RunError, ScriptedModel, Worker, WorkerPool
from rl_conductor.agents import A2AAgent, a2a_connection
from rl_conductor.agents.a2a_reply import A2AReply
from rl_conductor.errors import (
    AuthenticationError,
    BadRequestError,
    BadResponseError,
    ModelError,
    ModelTimeoutError,
    UnreachableError,
)
from rl_conductor.models import Model, model
from rl_conductor.models.base import WrapperModel
from rl_conductor.types import Completion, Delta, FilePart, ImagePart, Message, Request

SECRET = "sk-loopback-0123456789uvwxyz"
ONE = plan((0, "Say pieces", []))


@pytest.fixture(scope="module")
def site() -> Iterator[mcp_shop.Site]:
    with a2a_agents.served(a2a_agents.agents) as site:
        yield site


@pytest.fixture
async def agent(site: mcp_shop.Site) -> AsyncIterator[Callable[..., A2AAgent]]:
    made: list[A2AAgent] = []

    def make(path: str = "/stream", **options: object) -> A2AAgent:
        made.append(A2AAgent(f"{site.url}{path}", **options))  # type: ignore[arg-type]
        return made[-1]

    site.headers.clear()
    a2a_agents.started.clear()
    a2a_agents.cancelled.clear()
    yield make
    for one in made:
        await one.aclose()


def say(text: str, timeout: float | None = None) -> Request:
    return Request(messages=(Message.user(text),), timeout=timeout)


async def until(event: object) -> None:
    assert await asyncio.to_thread(event.wait, SOON)  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["/stream", "/rest", "/old"])
async def test_the_text_of_artifacts_is_streamed(agent: Callable[..., A2AAgent], path: str) -> None:
    shop = agent(path)
    assert isinstance(shop, Model)
    deltas = [delta async for delta in shop.stream(say("pieces"))]
    assert [delta.text for delta in deltas[:-1]] == ["There are ", "17 ", "pens."]
    completion = deltas[-1].completion
    assert completion is not None
    assert (completion.text, completion.model) == ("There are 17 pens.", shop.name)


@pytest.mark.parametrize("path", ["/stream", "/plain", "/rest", "/old"])
@pytest.mark.parametrize(
    ("word", "reply"),
    [
        ("message", "17 pens."),
        ("status", "17 pens."),
        ("two", 'One.\n\n{"two": [2.0]}'),
        ("again", "There are 17 pens."),
    ],
)
async def test_every_kind_of_reply_is_read(agent: Callable[..., A2AAgent], path: str, word: str, reply: str) -> None:
    assert (await agent(path).complete(say(word))).text == reply


async def test_a_task_that_is_not_over_is_looked_up_until_it_is(agent: Callable[..., A2AAgent]) -> None:
    assert (await agent("/slow").complete(say("How many?"))).text == "17"


@pytest.mark.parametrize(
    ("word", "error", "message"),
    [
        ("fail", ModelError, "the agent failed: no access"),
        ("reject", BadRequestError, "the agent rejected the task: not my job"),
        ("ask", BadRequestError, r"waits for an answer that nobody can give here: Which shop\?"),
        ("login", AuthenticationError, "waits for credentials"),
        ("silence", BadResponseError, "the reply is empty"),
        ("no-such-word", ModelError, "a2a:"),
        ("flood", BadResponseError, "larger than"),
    ],
)
@pytest.mark.parametrize("path", ["/stream", "/plain"])
async def test_a_task_without_a_reply_is_an_error_that_is_not_retried(
    agent: Callable[..., A2AAgent], path: str, word: str, error: type[ModelError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        await agent(path).complete(say(word))
    assert not caught.value.retryable or path == "/plain"


async def test_a_task_that_waits_for_input_is_cancelled(agent: Callable[..., A2AAgent]) -> None:
    with pytest.raises(BadRequestError):
        await agent().complete(say("ask"))
    await until(a2a_agents.cancelled)


# ----------------------------------------------------------------------------- cancellation and time


async def test_cancelling_the_caller_cancels_the_task(agent: Callable[..., A2AAgent]) -> None:
    call = asyncio.ensure_future(agent().complete(say("wait")))
    await until(a2a_agents.started)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(a2a_agents.cancelled)


async def test_a_reader_that_leaves_early_cancels_the_task(agent: Callable[..., A2AAgent]) -> None:
    stream = agent().stream(say("wait"))
    assert (await anext(stream)).text == "One moment. "
    await stream.aclose()
    await until(a2a_agents.cancelled)


async def test_a_task_is_given_up_and_cancelled_at_its_timeout(agent: Callable[..., A2AAgent]) -> None:
    begun = time.monotonic()
    with pytest.raises(ModelTimeoutError, match="no answer in time"):
        await agent().complete(say("wait", timeout=0.3))
    assert time.monotonic() - begun < SOON
    await until(a2a_agents.cancelled)


async def test_the_deadline_of_a_run_reaches_the_agent(agent: Callable[..., A2AAgent]) -> None:
    conductor = Conductor(ScriptedModel(plan((0, "wait", []))), {"shop": Words(agent(), "wait")})
    with pytest.raises(RunError, match=r"limits\.seconds"):
        await conductor.run("How many?", limits=Limits(seconds=0.5))
    await until(a2a_agents.cancelled)


class Words(WrapperModel):
    """The agent, whose prompt ends with a word that it understands."""

    def __init__(self, agent: A2AAgent, word: str) -> None:
        super().__init__(agent)
        self.word = word

    async def complete(self, request: Request) -> Completion:
        return await self.model.complete(self._request(request))

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        async for delta in self.model.stream(self._request(request)):
            yield delta

    def _request(self, request: Request) -> Request:
        return say(f"{request.messages[-1].text} {self.word}", request.timeout)


# ------------------------------------------------------------------------------- cards and addresses


async def test_the_card_of_the_agent_becomes_that_of_the_worker(site: mcp_shop.Site) -> None:
    worker = Worker.of("shop", f"a2a:{site.url}/stream")
    assert worker.card.description == "shop: Knows the stock of a shop.; skills: count goods"
    assert worker.model.name == f"a2a:{site.url}/stream"
    named = A2AAgent(f"{site.url}/stream/.well-known/agent-card.json")
    assert named.description == worker.card.description
    mine = Worker.of("shop", A2AAgent("http://127.0.0.1:9", description="counts pens"))
    assert mine.card.description == "counts pens"


async def test_an_agent_that_is_down_is_a_warning_first_and_then_a_failed_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = WorkerPool([Worker.of("down", "a2a:http://127.0.0.1:9"), Worker.of("up", ScriptedModel("17."))])
    assert pool["down"].card.description == ""
    assert "a2a:http://127.0.0.1:9: can't reach http://127.0.0.1:9: " in caplog.text
    assert caplog.records[0].levelno == logging.WARNING
    with pytest.raises(UnreachableError):
        await pool["down"].model.complete(say("pieces"))
    trace = await Conductor(ScriptedModel(lambda _: ONE), pool).run("How many?")
    assert trace.text == "17."
    await pool.aclose()


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("/web", BadResponseError, "Expecting value"),
        ("/list", BadResponseError, "must be a JSON object"),
        ("/huge", BadResponseError, "the card is larger than 1,048,576 bytes"),
        ("/nothing", BadRequestError, "HTTP status 404 for its card"),
        ("/grpc", BadRequestError, "names no address for JSON-RPC or HTTP"),
    ],
)
async def test_an_agent_without_a_usable_card_is_an_error(
    agent: Callable[..., A2AAgent], path: str, error: type[ModelError], message: str
) -> None:
    with pytest.raises(error, match=message):
        await agent(path).complete(say("pieces"))


async def test_a_card_that_comes_byte_by_byte_is_given_up(
    agent: Callable[..., A2AAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(a2a_connection, "CARD_TIMEOUT", 0.5)
    with pytest.raises(ModelTimeoutError, match="no answer in time"):
        await asyncio.wait_for(agent("/drip").complete(say("pieces")), SOON)


def test_looking_at_a_task_again_does_not_make_its_reply_longer() -> None:
    artifact = Artifact(artifact_id="a", parts=[Part(text="x" * 2**20)])
    reply = A2AReply("a2a:shop")
    for state in (*[TaskState.TASK_STATE_WORKING] * 20, TaskState.TASK_STATE_COMPLETED):
        reply.add_task(Task(id="t", status=TaskStatus(state=state), artifacts=[artifact]))
    assert reply.completion(None).text == "x" * 2**20


async def test_requests_go_to_another_host_only_if_the_user_named_it(
    agent: Callable[..., A2AAgent], site: mcp_shop.Site
) -> None:
    host = f"localhost:{site.url.rpartition(':')[2]}"
    with pytest.raises(
        BadRequestError, match=rf"names other hosts: {host}; if you trust them, pass hosts=\['{host}'\]"
    ):
        await agent("/moved", api_key=SECRET).complete(say("pieces"))
    assert len(site.headers) == 1  # the card's
    assert (await agent("/moved", hosts=[host]).complete(say("pieces"))).text == "There are 17 pens."


class Downgraded(A2AAgent):
    """An agent with an `https` URL and a card that names an `http` one."""

    def read_card(self) -> dict[str, Any]:
        card: dict[str, Any] = MessageToDict(a2a_agents.card(f"http{self.url.removeprefix('https')}/"))
        return card


async def test_requests_to_an_encrypted_agent_stay_encrypted(site: mcp_shop.Site) -> None:
    site.headers.clear()
    agent = Downgraded(f"https{site.url.removeprefix('http')}/stream", api_key=SECRET)
    with pytest.raises(BadRequestError, match="its own URL is https, but its card names only unencrypted addresses"):
        await agent.complete(say("pieces"))
    await agent.aclose()
    assert site.headers == []


@pytest.mark.parametrize("url", ["shop.example.com", "ftp://shop.example.com", "http://", "http://[shop"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="write its URL, such as"):
        model(f"a2a:{url}")


# ------------------------------------------------------------------------------------- credentials


async def test_keys_and_headers_of_a_pool_file_are_sent_and_never_shown(
    site: mcp_shop.Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_KEY", SECRET)
    monkeypatch.setenv("SHOP_TENANT", "tenant-0123456789")
    (tmp_path / "pool.toml").write_text(
        f'[workers.shop]\nmodel = "a2a:{site.url}/stream"\napi_key_env = "SHOP_KEY"\n'
        'headers_env = { X-Tenant = "SHOP_TENANT" }\nprice = { input = 0, output = 0, per_call = "0.02" }\n'
    )
    site.headers.clear()
    pool = WorkerPool.from_toml(tmp_path / "pool.toml")
    reply = await pool["shop"].model.complete(say("pieces"))
    assert len(site.headers) == 2
    assert {headers["authorization"] for headers in site.headers} == {f"Bearer {SECRET}"}
    assert {headers["x-tenant"] for headers in site.headers} == {"tenant-0123456789"}
    assert (reply.usage.cost, reply.usage.unpriced_calls) == (Decimal("0.02"), 0)
    with pytest.raises(ModelError, match=r"no access with \[secret\]") as caught:
        await pool["shop"].model.complete(say("fail"))
    await pool.aclose()
    assert SECRET not in str(caught.value) + repr(pool["shop"].model) + repr(vars(pool["shop"].model)["headers"])


# ------------------------------------------------------------------------------- budget and contents


async def test_the_cost_of_an_agent_is_unknown_unless_it_has_a_price(agent: Callable[..., A2AAgent]) -> None:
    usage = (await agent().complete(say("pieces"))).usage
    assert (usage.calls, usage.unpriced_calls, usage.cost) == (1, 1, Decimal(0))
    conductor = Conductor(
        ScriptedModel(lambda _: ONE), {"shop": agent(price=Price(input=0, output=0, per_call=Decimal("0.5")))}
    )
    with pytest.raises(RunError, match=r"limits\.usd=0\.1"):
        await conductor.run("How many?", limits=Limits(usd=Decimal("0.1")))


async def test_a_step_of_a_run_is_done_by_an_agent(agent: Callable[..., A2AAgent]) -> None:
    conductor = Conductor(ScriptedModel(ONE), {"shop": Words(agent(), "pieces")})
    trace = await conductor.run("How many?")
    assert trace.text == "There are 17 pens."
    assert trace.usage.unpriced_calls == 1


async def test_images_and_files_that_the_card_names_arrive(agent: Callable[..., A2AAgent]) -> None:
    shop = agent()
    assert shop.description
    parts = (ImagePart(media_type="image/png", data="iVBO"), FilePart(media_type="application/pdf", data="JVBERi0x"))
    reply = await shop.complete(Request(messages=(Message.user("look", *parts),)))
    assert reply.text == "I got image/png, application/pdf"


async def test_earlier_turns_are_part_of_the_message(agent: Callable[..., A2AAgent]) -> None:
    turns = (Message.system("Be brief."), Message.user("one"), Message.assistant("two"), Message.user("repeat"))
    reply = await agent().complete(Request(messages=turns))
    assert reply.text == "System: Be brief.\n\nUser: one\n\nAssistant: two\n\nUser: repeat"


async def test_an_agent_can_be_sent_to_another_process(agent: Callable[..., A2AAgent]) -> None:
    copy = pickle.loads(pickle.dumps(agent()))
    assert (await copy.complete(say("pieces"))).text == "There are 17 pens."
    await copy.aclose()
