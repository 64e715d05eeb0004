"""`agent_app`: an A2A agent that answers its tasks with a conductor."""

from __future__ import annotations

from base64 import b64encode
from collections import OrderedDict
from contextlib import aclosing
from dataclasses import dataclass

from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as wire
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH, PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0
from google.protobuf.json_format import MessageToDict
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.types import ASGIApp

from rl_conductor._internal.validation import first_field_error
from rl_conductor._internal.version import package_version
from rl_conductor.cli.commands.a2a.answer_stream import AnswerStream
from rl_conductor.cli.serving.client_run import AskResult, ClientLimits, progress_message
from rl_conductor.cli.serving.http import local_only, with_api_key
from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConductorError, RunError
from rl_conductor.trace.events import AnswerDelta, Finished
from rl_conductor.trace.trace import Trace
from rl_conductor.types import ContentPart, FilePart, ImagePart, Message, Request, TextPart
from rl_conductor.workflow.limits import Limits

MAX_TASKS = 1_000
"""Number of tasks whose results clients can look up afterwards."""
INPUT_MODES = ("text/plain", "image/png", "image/jpeg", "image/webp", "image/gif", "application/pdf")
SCHEME = "bearer"


@dataclass(frozen=True)
class AgentInfo:
    """The parts of the agent's card that the user chooses."""

    name: str
    description: str
    url: str


def agent_app(conductor: Conductor, info: AgentInfo, api_key: str | None) -> ASGIApp:
    """Returns the ASGI application; with `api_key`, only the card is readable without it."""
    card = agent_card(info, needs_key=api_key is not None)
    handler = DefaultRequestHandler(ConductorExecutor(conductor), BoundedTaskStore(), card)
    routes = [
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True),
    ]
    app = Starlette(routes=routes)
    if api_key is None:
        return local_only(app)
    return with_api_key(app, api_key, public_paths={AGENT_CARD_WELL_KNOWN_PATH})


def agent_card(info: AgentInfo, *, needs_key: bool) -> wire.AgentCard:
    """Builds the agent's card."""
    versions = (PROTOCOL_VERSION_1_0, PROTOCOL_VERSION_0_3)
    card = wire.AgentCard(
        name=info.name,
        description=info.description,
        version=package_version(),
        supported_interfaces=[
            wire.AgentInterface(url=f"{info.url}/", protocol_binding="JSONRPC", protocol_version=version)
            for version in versions
        ],
        capabilities=wire.AgentCapabilities(streaming=True),
        default_input_modes=list(INPUT_MODES),
        default_output_modes=["text/plain"],
        skills=[wire.AgentSkill(id="ask", name="ask", description=info.description, tags=["questions"])],
    )
    if needs_key:
        bearer = wire.HTTPAuthSecurityScheme(scheme="Bearer")
        card.security_schemes[SCHEME].CopyFrom(wire.SecurityScheme(http_auth_security_scheme=bearer))
        card.security_requirements.append(wire.SecurityRequirement(schemes={SCHEME: wire.StringList()}))
    return card


class BoundedTaskStore(InMemoryTaskStore):
    """Forgets the oldest tasks, so that the memory is bounded."""

    def __init__(self) -> None:
        super().__init__()
        self._stored: OrderedDict[str, ServerCallContext] = OrderedDict()

    async def save(self, task: wire.Task, context: ServerCallContext) -> None:
        """Stores a task, and forgets the oldest one if there are too many."""
        await super().save(task, context)
        self._stored.setdefault(task.id, context)
        while len(self._stored) > MAX_TASKS:
            oldest, owner = self._stored.popitem(last=False)
            await super().delete(oldest, owner)


class ConductorExecutor(AgentExecutor):
    """Runs a question for each task, with steps as status updates and the answer as an artifact."""

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Answers the message of a new task; tasks are not continued, because each question stands for itself."""
        assert context.message is not None
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        if context.current_task is None:
            await event_queue.enqueue_event(new_task_from_user_message(context.message))
        try:
            request = _request(context.message)
            limits = _client_limits(context).lower(self._conductor.limits)
        except ValueError as error:
            wrong = first_field_error(error) if isinstance(error, ValidationError) else error
            await updater.reject(_text(updater, str(wrong)))
            return
        await updater.start_work()
        trace, reason = await self._run(request, limits, updater)
        result = AskResult.of(trace).model_dump(mode="json") if trace else None
        if trace is not None and trace.completion is not None:
            await updater.update_status(wire.TaskState.TASK_STATE_COMPLETED, metadata=result)
        else:
            message = _text(updater, f"there is no answer: {reason}")
            await updater.update_status(wire.TaskState.TASK_STATE_FAILED, message, metadata=result)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Confirms the cancellation; the SDK has cancelled the run."""
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()

    async def _run(self, request: Request, limits: Limits, updater: TaskUpdater) -> tuple[Trace | None, str | None]:
        """Runs a request and reports its progress; returns its trace, and why there is no answer."""
        answer = AnswerStream(updater)
        trace: Trace | None = None
        try:
            async with aclosing(self._conductor.events(request, limits=limits)) as events:
                async for event in events:
                    if isinstance(event, AnswerDelta):
                        await answer.add(event.text)
                    elif isinstance(event, Finished):
                        trace = event.trace
                    elif (message := progress_message(event)) is not None:
                        await updater.start_work(_text(updater, message))
        except RunError as error:
            trace = error.trace
        except ConductorError as error:
            return trace, str(error)
        assert trace is not None
        if trace.completion is not None:
            await answer.finish(trace.completion.text)
        return trace, trace.error


def _text(updater: TaskUpdater, text: str) -> wire.Message:
    return updater.new_agent_message([wire.Part(text=text)])


def _client_limits(context: RequestContext) -> ClientLimits:
    """Returns the limits in the metadata of the request or its message, which may have other fields as well."""
    assert context.message is not None
    metadata = {**MessageToDict(context.message.metadata), **context.metadata}
    return ClientLimits.model_validate({name: metadata[name] for name in ClientLimits.model_fields if name in metadata})


def _request(message: wire.Message) -> Request:
    """Converts a client's message. Raises `ValueError` if there is nothing to answer."""
    parts = [_part(part) for part in message.parts]
    if not any(isinstance(part, TextPart) and part.text.strip() for part in parts):
        raise ValueError("the message has no text; write the question as a text part")
    return Request(messages=(Message(role="user", content=tuple(parts)),))


def _part(part: wire.Part) -> ContentPart:
    kind = part.WhichOneof("content")
    if kind == "text":
        return TextPart(text=part.text)
    if kind == "raw" and part.media_type.startswith("image/"):
        return ImagePart(media_type=part.media_type, data=b64encode(part.raw).decode())
    if kind == "url" and part.media_type.startswith("image/"):
        return ImagePart(media_type=part.media_type, url=part.url)
    if kind == "raw" and part.media_type == "application/pdf":
        return FilePart(name=part.filename or "file.pdf", media_type=part.media_type, data=b64encode(part.raw).decode())
    raise ValueError(f"a part of type {part.media_type or kind!r} is not supported; send {', '.join(INPUT_MODES)}")
