"""Errors of the Responses API about stored responses, conversations and items."""

from __future__ import annotations

from rl_conductor_server.api.openai_responses.ids import MAX_ID_CHARS, response_id
from rl_conductor_server.errors import ApiError, invalid_request
from rl_conductor_server.settings import IntakeEntry

PREVIOUS = "previous_response_id"
CONVERSATION = "conversation"
LOCKED = "conversation_locked"
"""The code of the error for a conversation with another request in progress, as at OpenAI."""
LOCKED_SECONDS = 1.0
"""Seconds after which a request may be repeated that found a conversation locked."""
SHORTEN = 'send a part of it as input, or truncation: "auto"'
"""The advice about a history that is too long."""


def too_many_parts(param: str, limits: IntakeEntry, remedy: str) -> ApiError:
    """Creates the error for a request with more content parts than allowed, stored ones included."""
    message = f"{param} adds stored content, with which the request has more than {limits.parts:,} content parts"
    return invalid_request(f"{message}; {remedy}", param=param)


def conversation_not_found(conversation: str) -> ApiError:
    """Creates the error for a conversation that doesn't exist, or belongs to another API key."""
    message = f"Conversation with id {conversation[:MAX_ID_CHARS]!r} not found."
    return ApiError(message, status=404, code="conversation_not_found", param=CONVERSATION)


def conversation_locked() -> ApiError:
    """Creates the error for a conversation to which another request is about to add its answer."""
    message = "Another process is currently operating on this conversation. Please retry in a few seconds."
    return ApiError(message, status=400, code=LOCKED, param=CONVERSATION, retry_after=LOCKED_SECONDS)


def response_not_found(run: str) -> ApiError:
    """Creates the error for a response that doesn't exist, or belongs to another API key."""
    return ApiError(f"Response with id {response_id(run)!r} not found.", status=404, code="response_not_found")


def previous_not_found(run: str) -> ApiError:
    """Creates the error for a request that continues a response which does not exist, or belongs to another API key."""
    message = f"Previous response with id {response_id(run)!r} not found."
    return invalid_request(message, param=PREVIOUS, code="previous_response_not_found")
