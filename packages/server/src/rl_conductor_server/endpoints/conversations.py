"""`/v1/conversations`: conversations of the Responses API and their items, of the caller's API key."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from rl_conductor_server.api.openai_responses.items import input_item
from rl_conductor_server.api.openai_responses.schema import Item
from rl_conductor_server.api.openai_responses.state.errors import conversation_locked
from rl_conductor_server.api.openai_responses.state.history import check_storage, find_conversation
from rl_conductor_server.auth.keys import ApiKey
from rl_conductor_server.endpoints.bodies import json_response, list_body
from rl_conductor_server.endpoints.dependencies import Caller, ServiceDependency, json_body
from rl_conductor_server.errors import ApiError, invalid_request
from rl_conductor_server.parsed_request import Metadata
from rl_conductor_server.request_validation.counts import check_counts
from rl_conductor_server.request_validation.parsing import Body, parse_body
from rl_conductor_server.service import Service
from rl_conductor_server.store import Conversation
from rl_conductor_server.threads import run_by_size
from rl_conductor_server.transport.body import read_json

PAGE_BYTES = 2**20
"""Size of a page above which it has fewer items than the client asked for, but one at least."""
MAX_NEW_ITEMS = 20
"""Maximum number of items of one request, as at OpenAI."""
ConversationId = Annotated[str, Path(max_length=64)]
ItemId = Annotated[str, Path(max_length=64)]
B = TypeVar("B", bound=Body)

router = APIRouter(prefix="/v1/conversations")


class CreateConversationBody(Body):
    """The body of `POST /v1/conversations`."""

    items: Annotated[tuple[Item, ...], Field(max_length=MAX_NEW_ITEMS)] | None = None
    metadata: Metadata | None = None


class UpdateConversationBody(Body):
    """The body of `POST /v1/conversations/ID`."""

    metadata: Metadata | None


class AddItemsBody(Body):
    """The body of `POST /v1/conversations/ID/items`."""

    items: Annotated[tuple[Item, ...], Field(min_length=1, max_length=MAX_NEW_ITEMS)]


@router.post("", openapi_extra=json_body(CreateConversationBody))
async def create_conversation(http: Request, service: ServiceDependency, key: Caller) -> dict[str, Any]:
    """Creates a conversation, with items or without."""
    key.check_rate()
    async with _parsed(CreateConversationBody, http, service, key) as body:
        await check_storage(service.store, service.settings.conversations, key.name, new=1)
        conversation = Conversation(
            id=f"conv_{secrets.token_hex(16)}", key=key.name, created=service.store.now(), metadata=body.metadata or {}
        )
        await service.store.conversations.create(conversation, await _new_items(body.items or ()))
    return _conversation_body(conversation)


@router.get("/{conversation}")
async def retrieve_conversation(
    conversation: ConversationId, service: ServiceDependency, key: Caller
) -> dict[str, Any]:
    """Returns a conversation without its items."""
    return _conversation_body(await find_conversation(service.store, conversation, key=key.name))


@router.post("/{conversation}", openapi_extra=json_body(UpdateConversationBody))
async def update_conversation(
    conversation: ConversationId, http: Request, service: ServiceDependency, key: Caller
) -> dict[str, Any]:
    """Replaces the metadata of a conversation."""
    key.check_rate()
    async with _parsed(UpdateConversationBody, http, service, key) as body:
        stored = await find_conversation(service.store, conversation, key=key.name)
        await service.store.conversations.set_metadata(conversation, body.metadata or {}, key=key.name)
    return _conversation_body(stored.model_copy(update={"metadata": body.metadata or {}}))


@router.delete("/{conversation}")
async def delete_conversation(conversation: ConversationId, service: ServiceDependency, key: Caller) -> dict[str, Any]:
    """Deletes a conversation and its items; the responses in it stay."""
    await find_conversation(service.store, conversation, key=key.name)
    await service.store.conversations.delete(conversation, key=key.name)
    return {"id": conversation, "object": "conversation.deleted", "deleted": True}


@router.get("/{conversation}/items", response_model=dict[str, Any])
async def list_conversation_items(
    conversation: ConversationId,
    service: ServiceDependency,
    key: Caller,
    *,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> Response:
    """Lists the items of a conversation; a page of long items has fewer than `limit`."""
    await find_conversation(service.store, conversation, key=key.name)
    sizes = await service.store.conversations.measure_page(
        conversation, key=key.name, after=after, limit=limit + 1, newest_first=order == "desc"
    )
    if sizes is None:
        raise invalid_request(f"this conversation has no item {after!r}", param="after")
    count = max(1, sum(total <= PAGE_BYTES for total in accumulate(sizes.values())))
    ids = list(sizes)[: min(count, limit)]

    async def load() -> dict[str, Any]:
        items = await service.store.conversations.get_items(conversation, ids, key=key.name)
        return list_body(items, has_more=len(sizes) > len(ids))

    return await json_response(service, key.name, sum(sizes[item] for item in ids), load)


@router.post("/{conversation}/items", openapi_extra=json_body(AddItemsBody), response_model=dict[str, Any])
async def add_conversation_items(
    conversation: ConversationId, http: Request, service: ServiceDependency, key: Caller
) -> Response:
    """Adds items at the end of a conversation."""
    key.check_rate()
    async with _parsed(AddItemsBody, http, service, key) as body:
        await find_conversation(service.store, conversation, key=key.name)
        limit = service.settings.intake.messages
        if await service.store.conversations.count_items(conversation, key=key.name) + len(body.items) > limit:
            raise invalid_request(f"a conversation has at most {limit:,} items; create another one", param="items")
        await check_storage(service.store, service.settings.conversations, key.name)
        items = await _new_items(body.items)
        if not await service.store.conversations.add_items(conversation, items, key=key.name):
            await find_conversation(service.store, conversation, key=key.name)
            raise conversation_locked()
        return await asyncio.to_thread(lambda: JSONResponse(list_body(items, has_more=False)))


@router.get("/{conversation}/items/{item}", response_model=dict[str, Any])
async def retrieve_conversation_item(
    conversation: ConversationId, item: ItemId, service: ServiceDependency, key: Caller
) -> Response:
    """Returns an item of a conversation."""
    size = await _measure_item(service, conversation, item, key.name)

    async def load() -> dict[str, Any]:
        stored = await service.store.conversations.get_items(conversation, [item], key=key.name)
        if not stored:  # deleted meanwhile
            raise _item_not_found(item)
        return stored[0]

    return await json_response(service, key.name, size, load)


@router.delete("/{conversation}/items/{item}")
async def delete_conversation_item(
    conversation: ConversationId, item: ItemId, service: ServiceDependency, key: Caller
) -> dict[str, Any]:
    """Deletes an item, and returns the conversation."""
    stored = await find_conversation(service.store, conversation, key=key.name)
    await _measure_item(service, conversation, item, key.name)
    await service.store.conversations.delete_item(conversation, item, key=key.name)
    return _conversation_body(stored)


@asynccontextmanager
async def _parsed(kind: type[B], http: Request, service: Service, key: ApiKey) -> AsyncGenerator[B, None]:
    """Reads and parses a body, for which there is room for the duration of the block."""
    intake = service.settings.intake

    def parse() -> B:
        check_counts(body, intake)
        return parse_body(kind, body)

    with service.reserve_body(0, key.name) as reserve:
        body = await read_json(http, max_bytes=intake.body_bytes, seconds=intake.client_seconds, on_chunk=reserve)
        yield await run_by_size(len(body), parse)


async def _measure_item(service: Service, conversation: str, item: str, key: str) -> int:
    """Returns the length of an item. Raises `ApiError` if there is none."""
    await find_conversation(service.store, conversation, key=key)
    size = await service.store.conversations.measure_item(conversation, item, key=key)
    if size is None:
        raise _item_not_found(item)
    return size


def _item_not_found(item: str) -> ApiError:
    return ApiError(f"Item with id {item!r} not found.", status=404, code="item_not_found")


async def _new_items(items: tuple[Item, ...]) -> list[dict[str, Any]]:
    """Formats new items; each gets an id of its own, as an id of the client could be taken."""
    suffix = secrets.token_hex(8)
    return await asyncio.to_thread(
        lambda: [input_item(item, f"{suffix}_{number}", keep_id=False) for number, item in enumerate(items)]
    )


def _conversation_body(conversation: Conversation) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": int(conversation.created),
        "metadata": conversation.metadata,
    }
