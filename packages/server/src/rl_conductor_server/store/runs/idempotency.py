"""`IdempotencyKeys`: finds earlier attempts at the same request by the header Idempotency-Key of its client."""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, select

from rl_conductor_server.store.models import Arm, NewRun, StoredAnswer
from rl_conductor_server.store.part import StorePart
from rl_conductor_server.store.tables import runs

HAS_ANSWER = and_(runs.c.status == "done", runs.c.trace.is_not(None))
"""`False` also if the answer was deleted."""


class IdempotencyKeys(StorePart):
    """Earlier attempts at requests with an idempotency key."""

    async def find_replay(self, run: NewRun) -> StoredAnswer | None:
        """Returns the answer to an earlier attempt at the same request, by its idempotency key."""
        query = select(runs.c.id, runs.c.created, runs.c.digest).where(is_same_request(run), HAS_ANSWER)
        row = (await self._reader.execute(query)).mappings().first()
        return None if row is None else StoredAnswer.model_validate(row)

    async def find_arm(self, key: str, idempotency_key: str) -> Arm | None:
        """Returns the experiment's arm that an earlier attempt at the same request was assigned to, if any."""
        query = select(runs.c.arm).where(runs.c.key == key, runs.c.idempotency_key == idempotency_key).limit(1)
        arm: Arm | None = (await self._reader.execute(query)).scalar_one_or_none()
        return arm


def is_same_request(run: NewRun) -> ColumnElement[bool]:
    """Builds the condition that a run has the idempotency key of `run`, and is its choice."""
    return and_(runs.c.key == run.key, runs.c.idempotency_key == run.idempotency_key, runs.c.choice == run.choice)
