"""Stores the pieces of streamed responses, so that their streams can be resumed; see `resumption`.

Only the pieces of the answer and the progress reports are stored: all other events follow from them and the trace.
"""

from __future__ import annotations

import asyncio

from rl_conductor.trace.events import AnswerDelta, Event, Finished
from rl_conductor_server.api.progress import progress_report
from rl_conductor_server.runs.handle import RunHandle
from rl_conductor_server.store import Store, StreamPiece

FLUSH_SECONDS = 0.5
"""Maximum wait of a piece for others, if the run goes on without its client."""


class StreamLog:
    """The stream of one response."""

    def __init__(self, run: RunHandle, store: Store, *, has_progress: bool, is_deferred: bool) -> None:
        """Observes a run, and stores its stream piece by piece.

        Args:
            run: the run.
            store: where the pieces are stored.
            has_progress: whether the stream has events with progress reports.
            is_deferred: leaves it to the caller when the pieces are stored; see `flush`.
        """
        self._run = run
        self._store = store
        self._has_progress = has_progress
        self._is_deferred = is_deferred
        self._pieces: list[StreamPiece] = []
        self._stored = 0
        self._timer: asyncio.TimerHandle | None = None
        run.observe(self._add)
        if not is_deferred:
            run.task.add_done_callback(lambda _: self.flush())  # a run that was cancelled has no last event

    def _add(self, event: Event) -> None:
        if isinstance(event, AnswerDelta) and not event.is_refusal:
            self._pieces.append(event.text)
        elif isinstance(event, Finished):
            if not self._is_deferred:  # before the end of the run: whoever sees that must find all pieces
                self.flush()
            return
        elif self._has_progress and (report := progress_report(event)) is not None:
            self._pieces.append(report)
        else:
            return
        if self._run.is_detached and not self._is_deferred and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        """Stores the pieces so far."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pieces:
            replaces_earlier = self._run.is_detached and not self._stored
            self._store.responses.add_pieces(
                self._run.id, self._stored, self._pieces, replaces_earlier=replaces_earlier
            )
            self._stored += len(self._pieces)
            self._pieces = []
