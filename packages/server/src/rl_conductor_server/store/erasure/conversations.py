"""Erases the items that runs added to conversations, and the conversations of one user."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator

from sqlalchemy import Connection, delete, func, select, update

from rl_conductor_server.store.runs.run_id import first_item_ids, run_of_item
from rl_conductor_server.store.tables import conversation_items, conversations, responses, runs, users

ITEMS = conversation_items.c
MAX_IDS = 500
"""Maximum number of ids in one query."""


def delete_items(connection: Connection, run_ids: Collection[str]) -> list[str]:
    """Deletes the items that runs added to their conversations, and returns these conversations."""
    changed = _conversations_of(connection, run_ids)
    for conversation in changed:
        sizes = select(ITEMS.id, func.length(ITEMS.body).label("size")).where(ITEMS.conversation == conversation)
        own = [row for row in connection.execute(sizes) if run_of_item(row.id) in run_ids]
        for ids in _in_parts([row.id for row in own]):
            is_item = ITEMS.conversation == conversation, ITEMS.id.in_(ids)
            connection.execute(delete(conversation_items).where(*is_item))
        size = conversations.c.bytes - sum(row.size for row in own)
        connection.execute(update(conversations).where(conversations.c.id == conversation).values(bytes=size))
    return changed


def delete_conversations(connection: Connection, candidates: Collection[str], *, user: str) -> None:
    """Deletes conversations with all their items, but for those that have runs of other users."""
    for conversation in candidates:
        ids = connection.execute(select(ITEMS.id).where(ITEMS.conversation == conversation)).scalars()
        run_ids = list({run for item in ids if (run := run_of_item(item))})
        if not any(_have_other_users(connection, part, user) for part in _in_parts(run_ids)):
            connection.execute(delete(conversation_items).where(ITEMS.conversation == conversation))
            connection.execute(delete(conversations).where(conversations.c.id == conversation))


def _conversations_of(connection: Connection, run_ids: Collection[str]) -> list[str]:
    """Returns the conversations that requests named; the session is the conversation unless its metadata names one.

    If the response was deleted, and the request with it, the conversation is found by the ids of its items.
    """
    query = select(runs.c.key, runs.c.session, responses.c.parameters).outerjoin(
        responses, responses.c.run == runs.c.id
    )
    names, names_without_request = set[tuple[str, str | None]](), set[tuple[str, str | None]]()
    for row in connection.execute(query.where(runs.c.id.in_(run_ids), runs.c.api == "responses")):
        conversation = json.loads(row.parameters or "{}").get("conversation")
        is_object = isinstance(conversation, dict)
        names |= {(row.key, row.session), (row.key, conversation["id"] if is_object else conversation)}
        if row.parameters is None:
            names_without_request.add((row.key, row.session))
    is_named = conversations.c.id.in_([conversation for _, conversation in names if conversation])
    rows = connection.execute(select(conversations.c.key, conversations.c.id).where(is_named))
    existing = {(row.key, row.id) for row in rows}
    keys = {key for key, _ in names_without_request - existing}
    return list({name for _, name in names & existing if name} | _find_by_items(connection, keys, run_ids))


def _find_by_items(connection: Connection, keys: Collection[str], run_ids: Collection[str]) -> set[str]:
    """Returns the conversations of API keys that have the first item of the input or the answer of a run."""
    query = select(conversations.c.id).join(conversation_items, conversations.c.id == ITEMS.conversation)
    query = query.where(conversations.c.key.in_(keys))
    ids = [item for run in run_ids for item in first_item_ids(run)] if keys else []
    parts = [connection.execute(query.where(ITEMS.id.in_(part))).scalars() for part in _in_parts(ids)]
    return {conversation for part in parts for conversation in part}


def _have_other_users(connection: Connection, run_ids: Collection[str], user: str) -> bool:
    is_other = users.c.run.in_(run_ids), users.c.name != user.lower()
    return connection.execute(select(users.c.run).where(*is_other).limit(1)).first() is not None


def _in_parts(ids: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), MAX_IDS):
        yield ids[start : start + MAX_IDS]
