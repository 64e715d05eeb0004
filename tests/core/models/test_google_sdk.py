"""Our requests to Google, compared with those of the vendor's own SDK."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import httpx2
import pytest
from google import genai
from google.genai import types
from google.genai.errors import APIError
from google.oauth2.credentials import Credentials

from rl_conductor.errors import ModelError
from rl_conductor.models import model
from rl_conductor.models.base import collect
from rl_conductor.types import (
    FilePart,
    ImagePart,
    JsonFormat,
    Message,
    ReasoningPart,
    Request,
    Sampling,
    Tool,
    ToolCall,
)

from .wire.base import SECRET, Wire
from .wire.clouds import PROJECT, VertexWire
from .wire.google import GoogleWire

HELLO = Request.user("hello")
SCHEMA = {"type": "object", "properties": {"a_b": {"type": "integer", "minimum": 1}}, "required": ["a_b"]}
SIGNATURE = "c2lnbmVk"
RICH = Request(
    messages=(
        Message.system("Be brief."),
        Message.user(
            "What is it?",
            ImagePart(data="aGk="),
            ImagePart(url="https://example.org/cat.png"),
            FilePart(data="JVBERi0xLjQK"),
        ),
        Message(
            role="assistant",
            content=(
                ReasoningPart(text="hm", signature=f"google:thought:{SIGNATURE}"),
                ReasoningPart(text="", signature=f"google:call:{SIGNATURE}:c1"),
            ),
            tool_calls=(
                ToolCall(id="c1", name="look", arguments='{"at": ["it"]}'),
                ToolCall(id="c2", name="clock", arguments="{}"),
            ),
        ),
        Message(role="tool", tool_call_id="c1", content=(*Message.user("a cat").content, ImagePart(data="aGk="))),
        Message.tool("c2", "noon"),
    ),
    tools=(Tool(name="look", description="Looks.", parameters=SCHEMA), Tool(name="clock")),
    tool_choice="look",
    response_format=JsonFormat(json_schema=SCHEMA),
    sampling=Sampling(temperature=0.5, top_p=0.9, max_tokens=5000, seed=7, stop=("END",), effort="low"),
    timeout=20.5,
)

SDK_CONTENTS = [
    types.Content(
        role="user",
        parts=[
            types.Part(text="What is it?"),
            types.Part.from_bytes(data=b"hi", mime_type="image/png"),
            types.Part.from_uri(file_uri="https://example.org/cat.png", mime_type="image/png"),
            types.Part.from_bytes(data=b64decode("JVBERi0xLjQK"), mime_type="application/pdf"),
        ],
    ),
    types.Content(
        role="model",
        parts=[
            types.Part(text="hm", thought=True, thought_signature=b64decode(SIGNATURE)),
            types.Part(
                function_call=types.FunctionCall(id="c1", name="look", args={"at": ["it"]}),
                thought_signature=b64decode(SIGNATURE),
            ),
            types.Part(function_call=types.FunctionCall(id="c2", name="clock", args={})),
        ],
    ),
    types.Content(
        role="user",
        parts=[
            types.Part(
                function_response=types.FunctionResponse(
                    id="c1",
                    name="look",
                    response={"output": "a cat"},
                    parts=[types.FunctionResponsePart.from_bytes(data=b"hi", mime_type="image/png")],
                )
            ),
            types.Part(function_response=types.FunctionResponse(id="c2", name="clock", response={"output": "noon"})),
        ],
    ),
]
SDK_CONFIG = types.GenerateContentConfig(
    system_instruction="Be brief.",
    temperature=0.5,
    top_p=0.9,
    max_output_tokens=5000,
    seed=7,
    stop_sequences=["END"],
    thinking_config=types.ThinkingConfig(include_thoughts=True, thinking_level=types.ThinkingLevel.LOW),
    tools=[
        types.Tool(
            function_declarations=[
                types.FunctionDeclaration(name="look", description="Looks.", parameters_json_schema=SCHEMA),
                types.FunctionDeclaration(name="clock", parameters_json_schema=Tool(name="clock").parameters),
            ]
        )
    ],
    tool_config=types.ToolConfig(
        function_calling_config=types.FunctionCallingConfig(
            mode=types.FunctionCallingConfigMode.ANY, allowed_function_names=["look"]
        )
    ),
    response_mime_type="application/json",
    response_json_schema=SCHEMA,
    http_options=types.HttpOptions(timeout=20_500),
)


@pytest.fixture(scope="module")
def gemini() -> Iterator[GoogleWire]:
    with GoogleWire.running() as service:
        yield service


@pytest.fixture(scope="module")
def vertex() -> Iterator[VertexWire]:
    with VertexWire.running() as service:
        yield service


@pytest.fixture(params=["google", "vertex"])
async def service(request: pytest.FixtureRequest, gemini: GoogleWire, vertex: VertexWire) -> Any:
    return vertex if request.param == "vertex" else gemini


@pytest.fixture
async def sdk(service: GoogleWire) -> AsyncIterator[Any]:
    """The models of the SDK's client."""
    async with httpx2.AsyncClient() as http:
        options = types.HttpOptions(base_url=service.url, httpx_async_client=http)
        if isinstance(service, VertexWire):
            token = Credentials(token=SECRET)  # type: ignore[no-untyped-call]
            place = {"project": PROJECT, "location": "global"}
            client = genai.Client(vertexai=True, credentials=token, http_options=options, **place)  # type: ignore[arg-type]
        else:
            client = genai.Client(vertexai=False, api_key=SECRET, http_options=options)
        yield client.aio.models


async def our_wire(service: GoogleWire, name: str, request: Request, *, streamed: bool = False) -> Wire:
    """Returns the request that the adapter sends."""
    is_vertex = isinstance(service, VertexWire)
    options = {"project": PROJECT} if is_vertex else {}
    ours = model(f"{'vertex' if is_vertex else 'google'}:{name}", base_url=service.url, api_key=SECRET, **options)
    with suppress(ModelError):  # the service doesn't answer all names
        await (collect(ours.stream(request)) if streamed else ours.complete(request))
    await ours.aclose()
    return service.last


def in_camel_case(value: Any) -> Any:
    """Returns JSON with the names of the API's documentation, of which the SDK writes some in the other spelling."""
    if isinstance(value, list):
        return [in_camel_case(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        re.sub(r"(?<=[a-z])_([a-z])", lambda match: match[1].upper(), name): (
            item if "chema" in name else in_camel_case(item)  # a schema's names are the caller's
        )
        for name, item in value.items()
    }


async def sdk_wire(sdk: Any, service: GoogleWire, name: str, *, streamed: bool = False, **request: Any) -> Wire:
    """Returns the request that the SDK sends."""
    before = len(service.requests)
    with suppress(APIError):  # the service reads neither all names nor the other spelling
        if streamed:
            async for _ in await sdk.generate_content_stream(model=name, **request):
                pass
        else:
            await sdk.generate_content(model=name, **request)
    assert len(service.requests) == before + 1
    return service.last


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_request_is_that_of_the_sdk(sdk: Any, service: GoogleWire, streamed: bool) -> None:
    ours = await our_wire(service, "echo", RICH, streamed=streamed)
    theirs = await sdk_wire(sdk, service, "echo", streamed=streamed, contents=SDK_CONTENTS, config=SDK_CONFIG)
    assert ours.body == in_camel_case(theirs.body)
    assert ours.path == theirs.path
    for header in ("authorization", "x-goog-api-key", "x-server-timeout", "content-type"):
        assert ours.headers.get(header) == theirs.headers.get(header)


@pytest.mark.parametrize(
    "name",
    [
        "gemini-3-pro",
        "models/gemini-3-pro",
        "tunedModels/mine",
        "meta/llama-4",
        "publishers/meta/models/llama-4",
        "projects/other/locations/us/models/mine",
        "endpoints/1234",
        "models",
        "projects",
        "a model of mine",
    ],
)
async def test_a_models_address_is_that_of_the_sdk(sdk: Any, service: GoogleWire, name: str) -> None:
    ours = await our_wire(service, name, HELLO)
    assert ours.path == (await sdk_wire(sdk, service, name, contents="hello")).path


@pytest.fixture(params=["beta", "v1alpha", ""])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the version of the API in the environment."""
    monkeypatch.setenv("GOOGLE_GENAI_API_VERSION", request.param)


async def test_the_version_of_the_api_is_that_of_the_sdk(version: None, sdk: Any, service: GoogleWire) -> None:
    ours = await our_wire(service, "echo", HELLO)
    assert ours.path == (await sdk_wire(sdk, service, "echo", contents="hello")).path
