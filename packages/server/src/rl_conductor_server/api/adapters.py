"""The adapter and the body of each endpoint for requests that models answer."""

from __future__ import annotations

from pydantic import BaseModel

from rl_conductor_server.api.adapter import ApiAdapter
from rl_conductor_server.api.anthropic_messages.adapter import Messages
from rl_conductor_server.api.anthropic_messages.schema import MessagesBody
from rl_conductor_server.api.openai_chat.adapter import ChatCompletions
from rl_conductor_server.api.openai_chat.schema import ChatBody
from rl_conductor_server.api.openai_responses.adapter import Responses
from rl_conductor_server.api.openai_responses.schema import ResponsesBody

ADAPTERS: dict[str, tuple[ApiAdapter, type[BaseModel]]] = {
    "/v1/chat/completions": (ChatCompletions(), ChatBody),
    "/v1/responses": (Responses(), ResponsesBody),
    "/v1/messages": (Messages(), MessagesBody),
}
"""Adapters and schemas by the path of the endpoint."""
