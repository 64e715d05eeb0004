"""The table of adapters, and the fixtures by which the contract suite reaches each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest

from rl_conductor.errors import BadRequestError, ModelError, RateLimitError
from rl_conductor.models import Model
from rl_conductor.models.anthropic.adapter import AnthropicModel
from rl_conductor.models.google.adapter import GoogleModel
from rl_conductor.models.openai.adapter import OpenAIModel
from rl_conductor.models.scripted import Scripted, ScriptedModel
from rl_conductor.pool.function_model import FunctionModel
from rl_conductor.types import Message, Request, ToolCall

from .cloud_adapters import CLOUD_ADAPTERS
from .subject import FAULTS, SCENARIOS, Adapter, Subject
from .wire.anthropic import AnthropicWire
from .wire.base import SECRET, Seen, WireServer, reply_to
from .wire.google import GoogleWire
from .wire.openai import OpenAIWire


def openai(scenario: str, url: str, **options: Any) -> Model:
    """OpenAI's own dialect, at another address."""
    return OpenAIModel(scenario, **{"base_url": f"{url}/v1", "api_key": SECRET, "dialect": "openai"} | options)


def anthropic(scenario: str, url: str, **options: Any) -> Model:
    """Anthropic's protocol, at another address."""
    return AnthropicModel(scenario, **{"base_url": url, "api_key": SECRET} | options)


def google(scenario: str, url: str, **options: Any) -> Model:
    """Google's protocol, at another address."""
    return GoogleModel(scenario, **{"base_url": url, "api_key": SECRET} | options)


def scripted(scenario: str, _url: str, **options: Any) -> Model:
    """The scripted model, told to behave as a service would."""
    errors = {
        "rate-limit": RateLimitError("slow down", model="scripted", status=429, retry_after=7.0),
        "server-error": ModelError("down", model="scripted", status=500, retryable=True),
        "bad-request": BadRequestError("no", model="scripted", status=400),
    }

    def reply(request: Request) -> Scripted:
        if scenario in errors:
            return errors[scenario]
        last = request.messages[-1].text
        said = reply_to(Seen(scenario, stream=False, text=last, tool_result=last))
        calls = [ToolCall(id=call_id, name=name, arguments=arguments) for call_id, name, arguments in said.calls]
        return Message.assistant(said.text, tool_calls=calls) if calls else said.pieces

    return ScriptedModel(reply, delay=30 if scenario == "hang" else 0, **options)


def function(_scenario: str, _url: str) -> Model:
    """A function that has nothing to say."""
    return FunctionModel(lambda _: "")


ADAPTERS = [
    Adapter(
        "scripted",
        scripted,
        frozenset(
            {
                "echo",
                "tools",
                "parallel-tools",
                "tool-result",
                "empty",
                "hang",
                "rate-limit",
                "server-error",
                "bad-request",
            }
        ),
    ),
    Adapter("function", function, frozenset({"empty"})),
    Adapter(
        "openai",
        openai,
        SCENARIOS | FAULTS,
        service=OpenAIWire,
        variables=("OPENAI_API_KEY", "OPENAI_BASE_URL"),
        path="/v1",
        sampling=frozenset({"temperature", "top_p", "max_tokens", "seed", "stop", "effort"}),
    ),
    Adapter(
        "anthropic",
        anthropic,
        SCENARIOS | FAULTS,
        service=AnthropicWire,
        variables=("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
        sampling=frozenset({"temperature", "top_p", "max_tokens", "stop", "effort"}),
    ),
    Adapter(
        "google",
        google,
        SCENARIOS - {"stop-sequence"} | FAULTS,  # its API does not report stop sequences
        service=GoogleWire,
        variables=("GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"),
        sampling=frozenset({"temperature", "top_p", "max_tokens", "seed", "stop", "effort"}),
    ),
]

ADAPTERS += CLOUD_ADAPTERS


def pytest_configure(config: pytest.Config) -> None:
    """Name the marks by which a test of the contract says what it asks."""
    config.addinivalue_line("markers", "needs(*scenarios): runs with each adapter that can do all of them")
    config.addinivalue_line("markers", "each(*scenarios): runs with each adapter and each `scenario` that it can do")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each adapter that can do what the test needs, and for each of its scenarios."""
    if "subject" not in metafunc.fixturenames:
        return
    needs = {scenario for mark in metafunc.definition.iter_markers("needs") for scenario in mark.args}
    able = [adapter for adapter in ADAPTERS if needs <= adapter.scenarios]
    each = metafunc.definition.get_closest_marker("each")
    if each is None:
        metafunc.parametrize("subject", able, ids=[adapter.id for adapter in able], indirect=True)
        return
    pairs = [(adapter, scenario) for adapter in able for scenario in each.args if scenario in adapter.scenarios]
    names = [f"{adapter.id}-{scenario}" for adapter, scenario in pairs]
    metafunc.parametrize(("subject", "scenario"), pairs, ids=names, indirect=["subject"])


@pytest.fixture(scope="session")
def services() -> Iterator[Callable[[type[WireServer]], WireServer]]:
    """Each vendor's service, started when it is first asked for."""
    with ExitStack() as stack:
        yield cache(lambda kind: stack.enter_context(kind.running()))


@pytest.fixture
async def subject(
    request: pytest.FixtureRequest,
    services: Callable[[type[WireServer]], WireServer],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Subject]:
    """An adapter under test."""
    adapter: Adapter = request.param
    for variable, value in adapter.environment:
        monkeypatch.setenv(variable, value)
    subject = Subject(adapter, services(adapter.service) if adapter.service else None)
    if subject.service:
        subject.service.requests.clear()
    yield subject
    for model in subject.models:
        await model.aclose()
