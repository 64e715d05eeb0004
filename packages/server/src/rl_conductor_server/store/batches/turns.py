"""Selects the next item of the batches: the keys take turns, and so do the batches of each key."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, exists, func, select

from rl_conductor_server.store.tables import batch_items, batches


def next_batch(is_due: ColumnElement[bool], except_keys: Collection[str]) -> ScalarSelect[Any]:
    """Selects the batch of the next item to process, among those with an item that `is_due`.

    It belongs to the key with the fewest running items; among several, to the one that was served least recently. So
    does the batch among those of its key.
    """
    batch, other = batches.alias(), batches.alias()
    running = select(func.count()).select_from(batch_items).where(batch_items.c.status == "running")
    served = select(func.max(other.c.served)).where(other.c.key == batch.c.key).scalar_subquery()
    order = (
        running.join(other).where(other.c.key == batch.c.key).scalar_subquery(),
        func.coalesce(served, 0.0),
        running.where(batch_items.c.batch == batch.c.id).scalar_subquery(),
        func.coalesce(batch.c.served, 0.0),
        batch.c.created,
        batch.c.id,
    )
    has_item = exists().where(batch_items.c.batch == batch.c.id, is_due).correlate(batch)
    is_candidate = batch.c.status == "in_progress", batch.c.key.not_in(except_keys), has_item
    return select(batch.c.id).where(*is_candidate).order_by(*order).limit(1).scalar_subquery()
