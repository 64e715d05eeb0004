"""The parts that requests of OpenAI's two APIs, Chat Completions and Responses, share."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rl_conductor_server.parsed_request import Extension, Metadata, UserName
from rl_conductor_server.request_validation.markers import ignorable, unsupported
from rl_conductor_server.request_validation.parsing import Body


class OpenAIBody(Body):
    """The parameters of both APIs."""

    HINTS: ClassVar[tuple[str, ...]] = ("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention")
    """Parameters that may affect the vendor's speed or price, but no answer; they are ignored."""

    model: str
    conductor: Extension = Extension()
    stream: bool | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    parallel_tool_calls: bool | None = None
    metadata: Metadata | None = None
    user: UserName | None = None
    safety_identifier: UserName | None = None
    store: bool | None = None

    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    service_tier: Annotated[Any, ignorable("auto", "default")] = None
    moderation: Annotated[
        Any, unsupported("is not supported, because the guardrails of this server check requests; leave it out")
    ] = None

    @property
    def labels(self) -> dict[str, str]:
        """The metadata and the names of the end user, by which runs can be found."""
        names = {name: value for name in ("user", "safety_identifier") if (value := getattr(self, name))}
        return (self.metadata or {}) | names

    @property
    def ignored_hints(self) -> list[str]:
        """The hints that the request has."""
        return [name for name in self.HINTS if getattr(self, name) is not None]


class StreamOptions(Body):
    """Options of a streamed response."""

    include_obfuscation: Annotated[bool | None, ignorable(False)] = None


class TextFormat(Body):
    """A plain text response."""

    type: Literal["text"]


class AnyJson(Body):
    """A JSON response without a schema."""

    type: Literal["json_object"]
