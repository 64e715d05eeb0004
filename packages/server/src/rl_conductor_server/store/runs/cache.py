"""Finds answers to repeated requests: the response cache has no storage of its own, but reads stored runs."""

from __future__ import annotations

from sqlalchemy import and_, func, select

from rl_conductor.trace.trace import Trace
from rl_conductor_server.store.codec import IncompatibleReleaseError, decode
from rl_conductor_server.store.models import NewRun
from rl_conductor_server.store.part import StorePart
from rl_conductor_server.store.tables import runs

MAX_TRACE_CHARS = 4 * 2**20
"""Maximum size of a trace that is read as a cached answer; a longer one would delay other requests."""

MAX_CANDIDATES = 3
"""Maximum number of earlier answers that are read; those that were cut off are passed over."""


class ResponseCache(StorePart):
    """The stored answers that another request may get."""

    async def find(self, run: NewRun, *, max_age: float) -> Trace | None:
        """Returns the newest whole answer of the same API key to the same request as `run`, at most `max_age` old."""
        is_same = and_(
            runs.c.key == run.key,
            runs.c.cache_digest == run.cache_digest,
            runs.c.choice == run.choice,
            runs.c.created > run.created - max_age,
        )
        is_original = and_(runs.c.status == "done", runs.c.cached_from.is_(None), runs.c.trace.is_not(None))
        query = select(runs.c.id, runs.c.trace).where(is_same, is_original)
        query = (
            query.where(func.length(runs.c.trace) <= MAX_TRACE_CHARS)
            .order_by(runs.c.created.desc())
            .limit(MAX_CANDIDATES)
        )
        rows = (await self._read(query)).all()
        traces = (_decode(row.trace, row.id) for row in rows)
        return next((trace for trace in traces if trace is not None and _is_whole(trace)), None)


def _decode(text: str, run: str) -> Trace | None:
    try:
        return decode(Trace, text, run=run)
    except IncompatibleReleaseError:
        return None


def _is_whole(trace: Trace) -> bool:
    """Returns `False` for an answer that another run might improve: one that was cut off, or a fallback."""
    completion, answer = trace.completion, trace.answer
    is_fallback = trace.error is not None or answer is None or answer.source == "evidence"
    return completion is not None and completion.finish_reason in ("stop", "tool_calls") and not is_fallback
