"""OpenAI's moderation endpoint (`/v1/moderations`) as a model: its reply is the classification in JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from rl_conductor.errors import BadResponseError
from rl_conductor.models.base import Capabilities, in_one_piece
from rl_conductor.models.openai.adapter import OpenAIModel
from rl_conductor.types import FREE, Completion, Delta, ImagePart, Message, Request, TextPart, Usage

MAX_TEXT_CHARS = 20_000
"""Longer texts are classified in pieces."""


class Classification(BaseModel):
    """The classification of one input."""

    flagged: bool
    categories: dict[str, bool | None]
    category_scores: dict[str, float | None]


class Classifications(BaseModel):
    """The reply, with one classification for each input."""

    model: str
    results: list[Classification]


class ModerationModel(OpenAIModel):
    """Classifies each text and image of a request; the vendor does not charge for it."""

    def __init__(self, name: str, *, base_url: str | None = None, api_key: str | None = None) -> None:
        """Configures the endpoint like `OpenAIModel`."""
        super().__init__(name, base_url=base_url, api_key=api_key, price=FREE, capabilities=Capabilities(images=True))

    async def complete(self, request: Request) -> Completion:
        """Returns `Classifications` as JSON: of the texts in their order, longer ones in pieces, then of the images."""
        parts = [part for message in request.messages for part in message.content]
        texts = [piece for part in parts if isinstance(part, TextPart) for piece in _pieces(part.text)]
        images = [_image(part) for part in parts if isinstance(part, ImagePart)]
        with self._explained_errors():
            async with asyncio.timeout(request.timeout):
                # The endpoint takes several texts at once, but merges a text and images into one result.
                batches: list[Sequence[Any]] = [texts] if texts else []
                batches += [[image] for image in images]
                replies = [await self._classify(inputs) for inputs in batches]
        return Completion(
            message=Message.assistant(
                Classifications(
                    model=self._model, results=[result for reply in replies for result in reply.results]
                ).model_dump_json()
            ),
            usage=Usage(calls=1),
            model=replies[-1].model if replies else self._model,
        )

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Yields the reply in one piece."""
        return in_one_piece(self, request)

    async def _classify(self, inputs: Sequence[Any]) -> Classifications:
        reply = await self._clients.get().moderations.create(model=self._model, input=list(inputs))
        try:
            # The SDK does not validate replies, and returns text that is not JSON as it is.
            content = reply.model_dump(by_alias=True, warnings=False) if isinstance(reply, BaseModel) else reply
            classifications = Classifications.model_validate(content)
        except ValidationError:
            raise BadResponseError(f"{self.name}: not a classification", model=self.name) from None
        if len(classifications.results) != len(inputs):
            message = f"{self.name}: {len(classifications.results)} classifications of {len(inputs)} inputs"
            raise BadResponseError(message, model=self.name)
        return classifications


def _pieces(text: str) -> list[str]:
    return [text[start : start + MAX_TEXT_CHARS] for start in range(0, len(text), MAX_TEXT_CHARS)]


def _image(image: ImagePart) -> dict[str, Any]:
    url = image.url or f"data:{image.media_type};base64,{image.data}"
    return {"type": "image_url", "image_url": {"url": url}}
