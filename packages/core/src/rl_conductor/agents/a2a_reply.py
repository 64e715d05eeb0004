"""`A2AReply`: accumulates the events of a task of an A2A agent into a completion, without I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable

from a2a.types.a2a_pb2 import Artifact, Part, Role, StreamResponse, Task, TaskState, TaskStatus
from google.protobuf.json_format import MessageToDict

from rl_conductor.errors import AuthenticationError, BadRequestError, ModelError
from rl_conductor.models.prices import priced
from rl_conductor.models.replies.size import ReplySize
from rl_conductor.models.vendor_errors import MAX_ERROR_LENGTH
from rl_conductor.types import Completion, Message, Price, Usage

FAILURES: dict[int, tuple[type[ModelError], str]] = {
    TaskState.TASK_STATE_FAILED: (ModelError, "the agent failed"),
    TaskState.TASK_STATE_CANCELED: (ModelError, "the agent cancelled the task"),
    TaskState.TASK_STATE_REJECTED: (BadRequestError, "the agent rejected the task"),
    TaskState.TASK_STATE_INPUT_REQUIRED: (BadRequestError, "the agent waits for an answer that nobody can give here"),
    TaskState.TASK_STATE_AUTH_REQUIRED: (AuthenticationError, "the agent waits for credentials"),
}
"""The error for each state in which a task has no reply."""
WAITING = (TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED)
"""States in which a task still exists."""
SEPARATOR = "\n\n"


class A2AReply:
    """The state of one task, and the text of its artifacts so far."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._pieces: list[str] = []
        self._size = ReplySize(model)
        self._artifacts: dict[str, list[str]] = {}
        """The pieces of each artifact, because appending to a text copies it."""
        self.task_id = ""
        self.has_started = False
        """The agent has accepted the request."""
        self.is_over = False
        """Nothing more will come, and there is nothing to cancel."""

    def add(self, event: StreamResponse) -> str:
        """Adds an event and returns the text that it adds to the reply.

        Raises:
            ModelError: the task failed, or waits for something that it can't get.
        """
        self.has_started = True
        match event.WhichOneof("payload"):
            case "message":
                self.is_over = True
                return self._append(text_of(event.message.parts))
            case "task":
                return self.add_task(event.task)
            case "artifact_update":
                self.task_id = event.artifact_update.task_id
                return self._add_artifact(event.artifact_update.artifact, append=event.artifact_update.append)
            case "status_update":
                self.task_id = event.status_update.task_id
                return self._add_status(event.status_update.status)
            case _:
                return ""

    def add_task(self, task: Task) -> str:
        """Adds the state of a whole task."""
        self.task_id = task.id
        added = "".join([self._add_artifact(artifact, append=False) for artifact in task.artifacts])
        replies = [message for message in task.history if message.role == Role.ROLE_AGENT]
        return added + self._add_status(task.status, text_of(replies[-1].parts) if replies else "")

    def completion(self, price: Price | None) -> Completion:
        """Builds the completion; agents don't report their usage, so only a price per call makes its cost known."""
        usage = priced(Usage(), price)
        return Completion(message=Message.assistant("".join(self._pieces)), usage=usage, model=self._model)

    def _add_artifact(self, artifact: Artifact, *, append: bool) -> str:
        text = text_of(artifact.parts)
        old = self._artifacts.get(artifact.artifact_id)
        if old is not None and append:
            old.append(text)
            return self._append(text, separator="")
        self._artifacts[artifact.artifact_id] = [text]
        if old is None:
            self._size.add(artifact.artifact_id)
        elif text.startswith(before := "".join(old)):  # sent once more as a whole, as with each look at the task
            return self._append(text[len(before) :], separator="")
        return self._append(text)

    def _add_status(self, status: TaskStatus, fallback: str = "") -> str:
        text = text_of(status.message.parts) or fallback
        if status.state in FAILURES:
            self.is_over = status.state not in WAITING
            error_type, reason = FAILURES[status.state]
            message = f"{self._model}: {reason}: {text}" if text else f"{self._model}: {reason}"
            raise error_type(message[:MAX_ERROR_LENGTH], model=self._model)
        self.is_over = status.state == TaskState.TASK_STATE_COMPLETED
        has_text = any(piece.strip() for piece in self._pieces)
        return self._append(text) if self.is_over and not has_text else ""

    def _append(self, text: str, *, separator: str = SEPARATOR) -> str:
        self._size.add(text)
        added = separator + text if any(self._pieces) and text else text
        self._pieces.append(added)
        return added


def text_of(parts: Iterable[Part]) -> str:
    """Returns the text of an agent's parts; data as JSON, and a note in place of each file."""
    return SEPARATOR.join(filter(None, map(_part_text, parts)))


def _part_text(part: Part) -> str:
    match part.WhichOneof("content"):
        case "text":
            return part.text
        case "data":
            return json.dumps(MessageToDict(part.data), ensure_ascii=False)
        case "url":
            return f"[file: {part.url}]"
        case "raw":
            return f"[a file that is not shown: {part.filename or part.media_type or 'without a name'}]"
        case _:
            return ""
