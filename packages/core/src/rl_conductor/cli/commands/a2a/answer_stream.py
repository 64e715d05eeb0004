"""`AnswerStream`: the answer of a run as one artifact of an A2A task, sent in pieces."""

from __future__ import annotations

from uuid import uuid4

from a2a.server.tasks import TaskUpdater
from a2a.types.a2a_pb2 import Part

PIECE_CHARS = 64
"""Length from which a piece is sent: the SDK stores the whole task with each."""


class AnswerStream:
    """Collects the deltas of an answer, and sends them as pieces of an artifact."""

    def __init__(self, updater: TaskUpdater) -> None:
        self._updater = updater
        self._artifact_id = str(uuid4())
        self._sent = ""
        self._pending = ""

    async def add(self, text: str) -> None:
        """Adds a delta, and sends the pending text if it is long enough."""
        self._pending += text
        if len(self._pending) >= PIECE_CHARS:
            await self._send(self._pending, append=bool(self._sent), is_last=False)
            self._sent, self._pending = self._sent + self._pending, ""

    async def finish(self, answer: str) -> None:
        """Sends the rest of the answer; if it does not continue the text that was sent, it replaces it."""
        continues = bool(self._sent) and answer.startswith(self._sent) and answer != self._sent
        await self._send(answer[len(self._sent) :] if continues else answer, append=continues, is_last=True)

    async def _send(self, text: str, *, append: bool, is_last: bool) -> None:
        await self._updater.add_artifact(
            [Part(text=text)], artifact_id=self._artifact_id, name="answer", append=append, last_chunk=is_last
        )
