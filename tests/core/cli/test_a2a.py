"""`a2a`: a conductor as an A2A agent, used by the SDK's own client."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.client.card_resolver import A2ACardResolver
from a2a.server.context import ServerCallContext
from a2a.types import a2a_pb2 as wire
from google.protobuf.json_format import MessageToDict
from typer.testing import Result

import a2a_agents
import mcp_shop
from core.cli.pens import team
from core.runs import SOON, down, plan
from rl_conductor import Conductor, Limits, Model, ScriptedModel
from rl_conductor.agents import A2AAgent
from rl_conductor.cli.commands.a2a import server as a2a_server
from rl_conductor.cli.commands.a2a.answer_stream import AnswerStream
from rl_conductor.cli.commands.a2a.server import AgentInfo, BoundedTaskStore, agent_app
from rl_conductor.errors import AuthenticationError
from rl_conductor.types import Completion, ImagePart, Request

ONE = plan((0, "Answer.", []))
COMPLETED, FAILED = wire.TaskState.TASK_STATE_COMPLETED, wire.TaskState.TASK_STATE_FAILED
REJECTED, CANCELED = wire.TaskState.TASK_STATE_REJECTED, wire.TaskState.TASK_STATE_CANCELED
TOKEN = "a-long-random-text"


def one(worker: Any) -> Conductor:
    return Conductor(ScriptedModel(lambda _: ONE), {"w": worker})


@contextmanager
def serving(conductor: Conductor, *, api_key: str | None = None) -> Iterator[mcp_shop.Site]:
    with a2a_agents.served(lambda url: agent_app(conductor, AgentInfo("team", "Counts pens.", url), api_key)) as site:
        yield site


@asynccontextmanager
async def client_of(site: mcp_shop.Site, *, version: str = "1.0", streaming: bool = True) -> AsyncIterator[Client]:
    async with httpx.AsyncClient() as http:
        card = await A2ACardResolver(http, site.url).get_agent_card()
        interfaces = [each for each in card.supported_interfaces if each.protocol_version == version]
        assert interfaces
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(interfaces)
        yield ClientFactory(ClientConfig(httpx_client=http, streaming=streaming)).create(card)


def message(*parts: wire.Part, **metadata: Any) -> wire.SendMessageRequest:
    content = wire.Message(role=wire.Role.ROLE_USER, message_id="m", parts=parts or [wire.Part(text="How many?")])
    content.metadata.update(metadata)
    return wire.SendMessageRequest(message=content)


async def ask(conductor: Conductor, request: wire.SendMessageRequest, **options: Any) -> wire.Task:
    """The task as it is in the end."""
    with serving(conductor) as site:
        async with client_of(site, streaming=False, **options) as client:
            return [event async for event in client.send_message(request)][-1].task


async def test_a_client_gets_progress_the_answer_in_pieces_and_the_cost() -> None:
    answer = "There are 17 pens in the house, and three more in the shop around the corner, as far as we know."
    with serving(team(answer)) as site:
        async with client_of(site) as client:
            events = [event async for event in client.send_message(message())]
    kinds = [event.WhichOneof("payload") for event in events]
    assert kinds[0] == "task"
    texts = [
        event.status_update.status.message.parts[0].text
        for event in events
        if event.WhichOneof("payload") == "status_update" and event.status_update.status.message.parts
    ]
    assert texts == [
        "planned 2 steps",
        "step 1: look started",
        "step 1: look ok",
        "step 2: final started",
        "step 2: final ok",
    ]
    artifacts = [event.artifact_update for event in events if event.WhichOneof("payload") == "artifact_update"]
    assert len(artifacts) == 2
    assert [artifact.append for artifact in artifacts] == [False, True]
    assert [artifact.last_chunk for artifact in artifacts] == [False, True]
    assert "".join(artifact.artifact.parts[0].text for artifact in artifacts) == answer
    end = events[-1].status_update
    assert end.status.state == COMPLETED
    result = MessageToDict(end.metadata)
    assert result["answer"] == answer
    assert (result["summary"]["usage"]["calls"], result["summary"]["usage"]["cost"]) == (3, "0.00201")
    assert [step["worker"] for step in result["summary"]["rounds"][0]["steps"]] == ["look", "final"]


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_client_without_streaming_gets_the_whole_task(version: str) -> None:
    task = await ask(team(), message(), version=version)
    assert task.status.state == COMPLETED
    assert [part.text for artifact in task.artifacts for part in artifact.parts] == ["17 pens."]


async def test_without_an_answer_the_task_fails_with_the_reason_and_the_cost() -> None:
    task = await ask(one(ScriptedModel(down)), message())
    assert task.status.state == FAILED
    assert task.status.message.parts[0].text == "there is no answer: step 1: w: out of order"
    assert not task.artifacts


async def test_clients_can_lower_limits_but_not_raise_them() -> None:
    task = await ask(team(limits=Limits(usd="0.000001")), message(max_usd=1))
    assert "limits.usd=0.000001" in MessageToDict(task.metadata)["summary"]["rounds"][0]["steps"][0]["error"]
    task = await ask(team(), message(max_usd=0.000001))
    assert "limits.usd=0.000001" in MessageToDict(task.metadata)["summary"]["rounds"][0]["steps"][0]["error"]
    task = await ask(team(), message(max_steps=1))
    assert len(MessageToDict(task.metadata)["summary"]["rounds"][0]["steps"]) == 1
    late = Conductor(ScriptedModel("x", delay=SOON), {"w": ScriptedModel("x", delay=SOON)}, limits=Limits(seconds=SOON))
    task = await ask(late, message(max_seconds=0.1))
    assert "limits.seconds=0.1 was over" in task.status.message.parts[0].text


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (message(max_usd=-1), "max_usd: write a number greater than or equal to 0"),
        (message(max_steps="many"), "max_steps: write an integer"),
        (message(wire.Part(text="  ")), "the message has no text"),
        (message(wire.Part(text="x"), wire.Part(raw=b"x", media_type="audio/wav")), "'audio/wav' is not supported"),
    ],
)
async def test_a_message_that_can_not_be_answered_is_rejected(request_: wire.SendMessageRequest, reason: str) -> None:
    task = await ask(team(), request_)
    assert task.status.state == REJECTED
    assert reason in task.status.message.parts[0].text


async def test_an_image_reaches_the_conductor() -> None:
    seen: list[Request] = []

    def look(request: Request) -> str:
        seen.append(request)
        return "a pen"

    image = wire.Part(raw=b"\x89PNG", media_type="image/png")
    assert (await ask(one(ScriptedModel(look)), message(wire.Part(text="What?"), image))).status.state == COMPLETED
    assert ImagePart(media_type="image/png", data="iVBORw==") in seen[0].messages[-1].content


async def test_cancelling_the_task_cancels_the_run() -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    class Slow(Model):
        name = "slow"

        async def complete(self, request: Request) -> Completion:
            loop.call_soon_threadsafe(began.set)
            try:
                await asyncio.Event().wait()
            finally:
                loop.call_soon_threadsafe(cancelled.set)
            raise AssertionError

    with serving(one(Slow())) as site:
        async with client_of(site) as client:
            events = client.send_message(message())
            task_id = (await anext(events)).task.id
            await asyncio.wait_for(began.wait(), SOON)
            task = await client.cancel_task(wire.CancelTaskRequest(id=task_id))
            await asyncio.wait_for(cancelled.wait(), SOON)
            assert task.status.state == CANCELED
            await events.aclose()  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------- access and card


async def test_without_the_token_only_the_card_is_readable() -> None:
    with serving(team(), api_key=TOKEN) as site:
        agent = A2AAgent(site.url)
        assert agent.description == "team: Counts pens.; skills: ask"
        with pytest.raises(AuthenticationError, match="HTTP status 401"):
            await agent.complete(Request.user("How many?"))
        await agent.aclose()
        agent = A2AAgent(site.url, api_key=TOKEN)
        reply = await agent.complete(Request.user("How many?"))
        await agent.aclose()
    assert reply.text == "17 pens."


async def test_without_a_token_web_pages_can_not_reach_the_agent() -> None:
    path = "/.well-known/agent-card.json"
    with serving(team()) as site:
        async with httpx.AsyncClient(base_url=site.url) as http:
            assert (await http.get(path)).json()["name"] == "team"
            assert (await http.get(path, headers={"Origin": "http://localhost:3000"})).status_code == 200
            assert (await http.get(path, headers={"Origin": "https://evil.example.com"})).status_code == 403
            assert (await http.get(path, headers={"Origin": "null"})).status_code == 403
            assert (await http.get(path, headers={"Host": "evil.example.com"})).status_code == 403
            assert (await http.get(path, headers={"Host": "[::1"})).status_code == 403


async def test_a_conductor_can_be_the_worker_of_another_one() -> None:
    with serving(team()) as site:
        outer = one(A2AAgent(site.url))
        assert outer.pool["w"].card.description == "team: Counts pens.; skills: ask"
        trace = await outer.run("How many pens?")
        await outer.aclose()
    assert trace.text == "17 pens."


async def test_old_tasks_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a2a_server, "MAX_TASKS", 2)
    store, context = BoundedTaskStore(), ServerCallContext()
    for task_id in ("a", "b", "a", "c"):
        await store.save(wire.Task(id=task_id, context_id="x"), context)
    assert await store.get("a", context) is None
    assert {task_id for task_id in "bc" if await store.get(task_id, context)} == {"b", "c"}


@pytest.mark.parametrize(
    ("deltas", "answer", "sent"),
    [
        (["a" * 70, "b"], "a" * 70 + "b", [("a" * 70, False, False), ("b", True, True)]),
        (["a" * 70], "another answer", [("a" * 70, False, False), ("another answer", False, True)]),
        (["a" * 70], "a" * 70, [("a" * 70, False, False), ("a" * 70, False, True)]),
        ([], "short", [("short", False, True)]),
    ],
)
async def test_an_answer_that_differs_from_its_draft_replaces_it(
    deltas: list[str], answer: str, sent: list[tuple[str, bool, bool]]
) -> None:
    class Recorder:
        def __init__(self) -> None:
            self.sent: list[tuple[str, bool, bool]] = []

        async def add_artifact(self, parts: list[wire.Part], *, append: bool, last_chunk: bool, **_: Any) -> None:
            self.sent.append((parts[0].text, append, last_chunk))

    recorder = Recorder()
    stream = AnswerStream(recorder)  # type: ignore[arg-type]
    for delta in deltas:
        await stream.add(delta)
    await stream.finish(answer)
    assert recorder.sent == sent


# ------------------------------------------------------------------------------------- the command


def test_an_open_address_needs_a_token(cli: Callable[..., Result]) -> None:
    result = cli("a2a", "--host", "0.0.0.0")
    assert result.exit_code == 2
    assert "anyone who can reach 0.0.0.0 could spend your money" in result.stderr


@pytest.mark.slow
async def test_the_command_serves_until_it_is_stopped(
    command: str, pool: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_CONDUCTOR_CACHE", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    arguments = [command, "a2a", "--port", "0", "--pool", pool(), "--name", "maths"]
    process = await asyncio.create_subprocess_exec(*arguments, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    while not (match := re.search(r"serving (\S+)", (await process.stderr.readline()).decode())):
        assert not process.stderr.at_eof()
    agent = A2AAgent(match[1])
    reply = await agent.complete(Request.user("What is 6 * 7?"))
    await agent.aclose()
    process.terminate()
    await process.communicate()
    assert agent.description.startswith("maths: ")
    assert reply.text == "It is [bold]42[/bold]."
