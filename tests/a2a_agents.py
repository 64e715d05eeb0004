"""Agents of the A2A SDK's own server, on loopback: what they do is the last word of the message that they get."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from a2a.helpers import new_task_from_user_message, new_text_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as wire
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

import mcp_shop

Play = Callable[[TaskUpdater, RequestContext], Awaitable[None]]

started, cancelled = threading.Event(), threading.Event()
"""Set when the part `wait` begins, and when its task is cancelled."""


def text(content: str) -> list[wire.Part]:
    return [wire.Part(text=content)]


async def pieces(updater: TaskUpdater, _: RequestContext) -> None:
    await updater.start_work(updater.new_agent_message(text("counting")))
    for index, piece in enumerate(("There are ", "17 ", "pens.")):
        await updater.add_artifact(text(piece), artifact_id="a", append=index > 0, last_chunk=index == 2)
    await updater.complete()


async def two(updater: TaskUpdater, _: RequestContext) -> None:
    await updater.add_artifact(text("One."), artifact_id="a")
    await updater.add_artifact([wire.Part(data=ParseDict({"two": [2]}, Value()))], artifact_id="b")
    await updater.complete()


async def again(updater: TaskUpdater, _: RequestContext) -> None:
    await updater.add_artifact(text("There are 17"), artifact_id="a")
    await updater.add_artifact(text("There are 17 pens."), artifact_id="a")
    await updater.complete()


async def status(updater: TaskUpdater, _: RequestContext) -> None:
    await updater.complete(updater.new_agent_message(text("17 pens.")))


async def silence(updater: TaskUpdater, _: RequestContext) -> None:
    await updater.complete()


async def fail(updater: TaskUpdater, context: RequestContext) -> None:
    headers = context.call_context.state.get("headers", {})
    await updater.failed(updater.new_agent_message(text(f"no access with {headers.get('authorization')}")))


async def reject(updater: TaskUpdater, _: RequestContext) -> None:
    await updater.reject(updater.new_agent_message(text("not my job")))


async def ask(updater: TaskUpdater, _: RequestContext) -> None:
    await updater.requires_input(updater.new_agent_message(text("Which shop?")))


async def login(updater: TaskUpdater, _: RequestContext) -> None:
    await updater.requires_auth()


async def flood(updater: TaskUpdater, _: RequestContext) -> None:
    await updater.add_artifact(text("x" * 9 * 2**20), artifact_id="a")
    await updater.complete()


async def wait(updater: TaskUpdater, _: RequestContext) -> None:
    await updater.add_artifact(text("One moment. "), artifact_id="a")
    started.set()
    await asyncio.Event().wait()


async def look(updater: TaskUpdater, context: RequestContext) -> None:
    assert context.message is not None
    kinds = [part.media_type for part in context.message.parts if part.media_type]
    await updater.complete(updater.new_agent_message(text(f"I got {', '.join(kinds)}")))


async def repeat(updater: TaskUpdater, context: RequestContext) -> None:
    await updater.complete(updater.new_agent_message(text(context.get_user_input())))


PLAYS: dict[str, Play] = {
    play.__name__: play
    for play in (pieces, two, again, status, silence, fail, reject, ask, login, flood, wait, look, repeat)
}


class Agent(AgentExecutor):
    """Does what the message says."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        name = context.get_user_input().split()[-1]
        if name == "message":
            await event_queue.enqueue_event(new_text_message("17 pens."))
            return
        await event_queue.enqueue_event(new_task_from_user_message(context.message))
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        await PLAYS[name](updater, context)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        cancelled.set()
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()


def card(url: str, *, binding: str = "JSONRPC", version: str = "1.0", streaming: bool = True) -> wire.AgentCard:
    return wire.AgentCard(
        name="shop",
        description="Knows the stock\nof a shop.",
        version="1",
        supported_interfaces=[wire.AgentInterface(url=url, protocol_binding=binding, protocol_version=version)],
        capabilities=wire.AgentCapabilities(streaming=streaming),
        default_input_modes=["text/plain", "image/png", "application/pdf"],
        default_output_modes=["text/plain"],
        skills=[wire.AgentSkill(id="count", name="count goods", description="Counts.", tags=["stock"])],
    )


def agent(card: wire.AgentCard) -> Starlette:
    handler = DefaultRequestHandler(Agent(), InMemoryTaskStore(), card)
    rpc = create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True)
    return Starlette(routes=[*create_agent_card_routes(card), *rpc, *create_rest_routes(handler)])


async def no_card(_: Any) -> Response:
    return PlainTextResponse("Please log in.")


async def no_object(_: Any) -> Response:
    return PlainTextResponse("[1]", media_type="application/json")


async def huge_card(_: Any) -> Response:
    return PlainTextResponse('{"name": "' + "x" * 2**21)


async def dripping_card(_: Any) -> Response:
    async def drip() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.05)

    return StreamingResponse(drip())


async def rpc_of_slow(request: Request) -> Response:
    """A JSON-RPC endpoint that answers at once that it works, and has the result when it is asked a second time."""
    call = await request.json()
    task: dict[str, Any] = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}
    if call["method"] == "GetTask":
        assert call["params"] == {"id": "t"}
        task |= {
            "status": {"state": "TASK_STATE_COMPLETED"},
            "artifacts": [{"artifactId": "a", "parts": [{"text": "17"}]}],
        }
    result = task if call["method"] == "GetTask" else {"task": task}
    return JSONResponse({"jsonrpc": "2.0", "id": call["id"], "result": result})


CARD = "/.well-known/agent-card.json"


class LateApp:
    """An application that is made once its address is known."""

    def __init__(self) -> None:
        self.app: Any = None

    async def __call__(self, *arguments: Any) -> None:
        await self.app(*arguments)


@contextmanager
def served(make: Callable[[str], Any]) -> Iterator[mcp_shop.Site]:
    """Serves `make(url)`; `url` of the site is the address without a path."""
    late = LateApp()
    with mcp_shop.serve(late) as site:
        site.url = site.url.removesuffix("/mcp")
        late.app = make(site.url)
        yield site


def agents(url: str) -> Starlette:
    """One application with agents of every kind, each at its own path."""
    cards = {
        "/stream": card(f"{url}/stream/"),
        "/plain": card(f"{url}/plain/", streaming=False),
        "/rest": card(f"{url}/rest", binding="HTTP+JSON"),
        "/old": card(f"{url}/old/", version="0.3"),
        "/moved": card(f"{url.replace('127.0.0.1', 'localhost')}/stream/"),
        "/grpc": card("grpc.example.com:443", binding="GRPC"),
    }
    routes: list[Any] = [Mount(path, agent(card)) for path, card in cards.items()]
    slow = card(f"{url}/slow/", streaming=False)
    routes.append(
        Mount("/slow", Starlette(routes=[*create_agent_card_routes(slow), Route("/", rpc_of_slow, methods=["POST"])]))
    )
    for path, answer in (("/web", no_card), ("/list", no_object), ("/huge", huge_card), ("/drip", dripping_card)):
        routes.append(Route(path + CARD, answer))
    return Starlette(routes=routes)
