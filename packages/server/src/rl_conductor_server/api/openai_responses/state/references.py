"""Resolves references to stored items in the input of a request (`item_reference`), within the caller's API key."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter

from rl_conductor_server.api.openai_responses.items import input_items
from rl_conductor_server.api.openai_responses.schema import INPUT, Item, ItemReference, StoredParameters
from rl_conductor_server.api.openai_responses.state.errors import too_many_parts
from rl_conductor_server.api.openai_responses.state.history import HistoryContext, count_parts
from rl_conductor_server.errors import ApiError, invalid_request
from rl_conductor_server.parsed_request import ParsedRequest, ResponseState
from rl_conductor_server.store import StoredTurn
from rl_conductor_server.store.runs.run_id import run_of_item
from rl_conductor_server.threads import run_by_size

ITEM: TypeAdapter[Item] = TypeAdapter(Item)


async def resolve_references(parsed: ParsedRequest, context: HistoryContext) -> ParsedRequest:
    """Replaces references by the items: of the input and output of stored responses, and of conversations.

    The request is stored with the items, so it stays complete when they are deleted.

    Raises:
        ApiError: an item doesn't exist or belongs to another API key, or the items exceed the limits.
    """
    state = parsed.state
    if state is None or not state.references:
        return parsed
    items_by_id = await _load_items(state.references, context)
    size = 0
    for reference in state.references:
        if reference not in items_by_id:
            raise _item_not_found(reference)
        size += len(items_by_id[reference])
    _check_size(size, context)  # the same item may be referred to several times
    context.reserve(size)
    resolved = await run_by_size(len(state.input) + size, lambda: _resolve(state, items_by_id))
    if count_parts(resolved.request.messages) > context.limits.parts:
        raise too_many_parts("input", context.limits, "refer to fewer items")
    return parsed.model_copy(update={"request": resolved.request, "state": resolved.state})


def _resolve(state: ResponseState, items_by_id: Mapping[str, str]) -> ParsedRequest:
    items = INPUT.validate_json(state.input)
    resolved = tuple(ITEM.validate_json(items_by_id[i.id]) if isinstance(i, ItemReference) else i for i in items)
    parameters = StoredParameters.model_validate_json(state.parameters)
    return parameters.model_copy(update={"input": resolved}).to_request()


async def _load_items(ids: tuple[str, ...], context: HistoryContext) -> Mapping[str, str]:
    """Returns the items by id, as JSON; those that were not found are missing."""
    store, limit = context.store, context.limits.body_bytes
    listed = await store.conversations.find_items(set(ids), key=context.key, max_bytes=limit)
    if listed is None:
        raise _too_large(limit)
    items_by_id = await run_by_size(sum(map(len, listed)), lambda: {json.loads(body)["id"]: body for body in listed})
    run_ids = {run for name in ids if name not in items_by_id and (run := run_of_item(name))}
    if run_ids:
        size = await store.responses.measure_all(run_ids, key=context.key)
        _check_size(size, context)
        context.reserve(size)
        turns = await store.responses.get_all(run_ids, key=context.key)
        items_by_id |= await run_by_size(size, lambda: {item["id"]: json.dumps(item) for item in _items(turns)})
    return items_by_id


def _items(turns: Iterable[StoredTurn]) -> Iterator[dict[str, Any]]:
    for turn in turns:
        yield from input_items(turn)
        yield from json.loads(turn.output or "[]")


def _check_size(size: int, context: HistoryContext) -> None:
    if size > context.limits.body_bytes:
        raise _too_large(context.limits.body_bytes)


def _too_large(limit: int) -> ApiError:
    message = f"input refers to items or responses of more than {limit:,} bytes; send fewer references"
    return invalid_request(message, param="input")


def _item_not_found(item: str) -> ApiError:
    message = f"Item with id {item!r} not found. Items of requests with store=false are not stored."
    return ApiError(message, status=404, code="item_not_found", param="input")
