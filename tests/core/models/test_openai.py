"""Behaviour of OpenAI and compatible servers alone: addresses, keys, dialects, prices."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import openai
import pytest

from core.runs import SOON
from rl_conductor.calls.context import RunContext
from rl_conductor.calls.model_call import ModelCall
from rl_conductor.errors import (
    AuthenticationError,
    BadRequestError,
    ConfigError,
    ContextLengthError,
    ModelError,
    RateLimitError,
)
from rl_conductor.models import model
from rl_conductor.models.base import Capabilities, collect
from rl_conductor.models.http import model as http_model
from rl_conductor.models.openai.adapter import OpenAIModel
from rl_conductor.models.openai.services import OllamaModel, OpenRouterModel, VLLMServerModel
from rl_conductor.models.prices import price_of
from rl_conductor.trace.trace import Call
from rl_conductor.types import FREE, Grammar, Request, Sampling

from .wire.base import SECRET, Failure, Said, Seen
from .wire.openai import OpenAIWire

HELLO = Request.user("hello there")
GRAMMAR = HELLO.model_copy(update={"response_format": Grammar(gbnf='root ::= "yes" | "no"')})
VARIABLES = [
    f"{vendor}_{what}" for vendor in ("OPENAI", "OPENROUTER", "OLLAMA", "VLLM") for what in ("API_KEY", "BASE_URL")
]


@pytest.fixture(scope="module")
def wire() -> Iterator[OpenAIWire]:
    with OpenAIWire.running() as wire:
        yield wire


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


# --------------------------------------------------------------------------------- addresses and keys


@pytest.mark.parametrize(
    ("name", "variable"), [("openai:gpt-5", "OPENAI_API_KEY"), ("openrouter:x/y", "OPENROUTER_API_KEY")]
)
def test_a_paid_service_without_a_key_names_the_variable_to_set(name: str, variable: str) -> None:
    with pytest.raises(ConfigError, match=variable):
        model(name)


@pytest.mark.parametrize("name", ["ollama:qwen3", "vllm-server:qwen3"])
def test_a_server_of_ones_own_needs_no_key_and_costs_nothing(name: str) -> None:
    made = model(name)
    assert made.name == name
    assert made.price == FREE


@contextmanager
def posting(status: int, content_type: str, body: bytes) -> Iterator[str]:
    """The address of a server with this reply to each request."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "content_type", "body", "says"),
    [
        (404, "application/json", b'{"detail":"Not Found"}', r"status 404 from ADDRESS \(.* '/v1'\): Not Found"),
        (404, "text/plain", b"404 page not found", r"status 404 from ADDRESS \(.* '/v1'\): 404 page not found"),
        (200, "text/html", b"<html></html>", r"a web page came instead of a reply from ADDRESS \(base_url often"),
        (404, "application/json", b'{"error":{"message":"no model echo"}}', "openai:echo: no model echo$"),
    ],
)
async def test_a_base_url_without_its_path_is_explained(status: int, content_type: str, body: bytes, says: str) -> None:
    with posting(status, content_type, body) as address:
        made = OpenAIModel("echo", base_url=address)
        with pytest.raises(ModelError, match=says.replace("ADDRESS", address)):
            await made.complete(HELLO)
        with pytest.raises(ModelError, match=says.replace("ADDRESS", address)):
            await collect(made.stream(HELLO))
        await made.aclose()


async def test_a_gateway_that_ignores_stream_is_understood() -> None:
    choice = {"message": {"role": "assistant", "content": "It is 4."}, "finish_reason": "stop"}
    body = {"model": "m", "choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}
    with posting(200, "application/json; charset=utf-8", json.dumps(body).encode()) as address:
        made = OpenAIModel("echo", base_url=address)
        deltas = [delta async for delta in made.stream(HELLO)]
        await made.aclose()
    assert [delta.text for delta in deltas] == ["It is 4.", ""]
    assert deltas[-1].completion is not None
    assert (deltas[-1].completion.text, deltas[-1].completion.usage.output_tokens) == ("It is 4.", 3)


async def test_an_error_that_comes_instead_of_a_stream_is_told() -> None:
    body = b'{"error": {"message": "bad key", "code": 401}}'
    with posting(200, "application/json", body) as address:
        made = OpenAIModel("echo", base_url=address)
        with pytest.raises(AuthenticationError, match="bad key"):
            await collect(made.stream(HELLO))
        await made.aclose()


async def test_a_stream_that_says_it_is_json_is_read_as_a_stream() -> None:
    choice = {"delta": {"content": "It is 4."}, "finish_reason": "stop"}
    body = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
    with posting(200, "application/json", body.encode()) as address:
        made = OpenAIModel("echo", base_url=address)
        assert (await collect(made.stream(HELLO))).text == "It is 4."
        await made.aclose()


async def test_an_address_with_its_version_is_not_doubted() -> None:
    with (
        posting(404, "text/plain", b"nothing here") as address,
        pytest.raises(BadRequestError, match=f"status 404 from {address}/v1: nothing here"),
    ):
        await asked(OpenAIModel("echo", base_url=f"{address}/v1"))


async def test_the_key_of_the_environment_goes_to_no_other_address(
    wire: OpenAIWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-mine")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-of-mine")
    await asked(OpenAIModel("echo", base_url=f"{wire.url}/v1"))
    assert SECRET not in str(wire.last)
    assert "of-mine" not in str(wire.last)


@pytest.mark.parametrize("host", ["openai.com.example.org", "notopenai.com", "example.org/openai.com"])
def test_a_host_that_only_looks_like_openai_gets_no_key(host: str) -> None:
    lookalike = OpenAIModel("gpt-5", base_url=f"https://{host}/v1")  # which needs no key, so it is none of OpenAI's
    assert lookalike.price is None


@pytest.mark.parametrize("host", ["eu.api.openai.com", "mine.openai.azure.com/openai"])
def test_openais_regional_hosts_are_openai(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        OpenAIModel("gpt-5", base_url=f"https://{host}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    assert OpenAIModel("gpt-5", base_url=f"https://{host}/v1").price == price_of("openai", "gpt-5")


@pytest.mark.parametrize(
    ("kind", "variable"),
    [(OllamaModel, "OLLAMA_BASE_URL"), (VLLMServerModel, "VLLM_BASE_URL"), (OpenRouterModel, "OPENROUTER_BASE_URL")],
)
async def test_each_service_has_a_variable_for_its_address(
    kind: type[OpenAIModel], variable: str, wire: OpenAIWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, f"{wire.url}/v1")
    assert await asked(kind("echo")) == "You said: hello there"


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(ConfigError, match="localhost:8000"):
        OpenAIModel("echo", base_url="localhost:8000/v1")


def test_the_options_that_affect_replies_are_the_address_and_added_fields_without_secrets() -> None:
    assert OpenAIModel("gpt-5", api_key="sk-secret", headers={"x-key": "secret"}).reply_options == {}
    own = OpenAIModel("m", base_url="https://me:secret@gateway.example/v1", extra_body={"top_k": 1})
    assert own.reply_options == {"base_url": "https://gateway.example/v1", "extra_body": {"top_k": 1}}


def test_a_repr_names_the_model_alone() -> None:
    assert repr(VLLMServerModel("qwen3", api_key=SECRET)) == "VLLMServerModel('qwen3')"


def test_prices_are_looked_up_for_the_service_that_asks_them() -> None:
    assert OpenAIModel("gpt-5", api_key=SECRET).price == price_of("openai", "gpt-5")
    assert OpenRouterModel("openai/gpt-5", api_key=SECRET).price == price_of("openrouter", "openai/gpt-5")
    assert OpenAIModel("gpt-5", base_url="http://localhost:1/v1").price is None
    assert OpenAIModel("gpt-5", base_url="http://localhost:1/v1", price=FREE).price == FREE


# ------------------------------------------------------------------------------------------- dialects


@pytest.mark.parametrize("how", ["complete", "stream"])
async def test_openai_itself_refuses_a_grammar(wire: OpenAIWire, how: str) -> None:
    with pytest.raises(BadRequestError, match="a grammar"):
        await asked(OpenAIModel("echo", base_url=f"{wire.url}/v1", dialect="openai"), GRAMMAR)


@pytest.mark.parametrize(
    ("dialect", "field"),
    [
        ("vllm", {"structured_outputs": {"grammar": 'root ::= "yes" | "no"'}, "skip_special_tokens": False}),
        ("llama.cpp", {"grammar": 'root ::= "yes" | "no"'}),
    ],
)
async def test_a_grammar_is_sent_in_the_servers_own_field(
    wire: OpenAIWire, dialect: str, field: dict[str, Any]
) -> None:
    await asked(OpenAIModel("echo", base_url=f"{wire.url}/v1", dialect=dialect), GRAMMAR)
    assert wire.last.body == {"model": "echo", "messages": [{"role": "user", "content": "hello there"}]} | field


async def test_vllms_server_takes_grammars_by_default(wire: OpenAIWire) -> None:
    await asked(VLLMServerModel("echo", base_url=f"{wire.url}/v1"), GRAMMAR)
    assert "structured_outputs" in wire.last.body


@pytest.mark.parametrize(("dialect", "field"), [("openai", "max_completion_tokens"), ("compatible", "max_tokens")])
async def test_the_token_limit_has_the_name_that_the_server_knows(wire: OpenAIWire, dialect: str, field: str) -> None:
    request = HELLO.model_copy(update={"sampling": Sampling(max_tokens=9)})
    await asked(OpenAIModel("echo", base_url=f"{wire.url}/v1", dialect=dialect), request)
    assert {name: value for name, value in wire.last.body.items() if "tokens" in name} == {field: 9}


def test_an_unknown_dialect_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'vlm'.*llama\.cpp.*vllm"):
        VLLMServerModel("qwen3", dialect="vlm")


async def test_extra_fields_are_sent_beside_a_grammar(wire: OpenAIWire) -> None:
    thoughtless = {"chat_template_kwargs": {"enable_thinking": False}}
    await asked(VLLMServerModel("echo", base_url=f"{wire.url}/v1", extra_body=thoughtless), GRAMMAR)
    assert wire.last.body["chat_template_kwargs"] == {"enable_thinking": False}
    assert "structured_outputs" in wire.last.body


@pytest.mark.parametrize(
    ("field", "advice"),
    [
        ("max_tokens", "write it as max_tokens in sampling"),
        ("max_completion_tokens", "write it as max_tokens in sampling"),
        ("n", "a call has one reply"),
        ("messages", "they are those of the request"),
    ],
)
def test_an_extra_field_that_would_pass_by_the_budget_or_the_request_is_refused(field: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=f"^extra_body can't have '{field}': {advice}$"):
        OpenAIModel("echo", base_url="http://127.0.0.1:9/v1", extra_body={"top_k": 20, field: 9})


async def test_usage_is_asked_for_when_streaming(wire: OpenAIWire) -> None:
    made = OpenAIModel("echo", base_url=f"{wire.url}/v1")
    await collect(made.stream(HELLO))
    await made.aclose()
    assert wire.last.body["stream_options"] == {"include_usage": True}


# ------------------------------------------------------------------------------------------ the library


class Impatient(OpenAIWire):
    """Says how long to wait in milliseconds too, as Azure does."""

    def failure(self, scenario: str) -> Failure:
        return replace(super().failure(scenario), headers={"retry-after-ms": "250", "Retry-After": "1"})


async def test_milliseconds_to_wait_come_before_seconds() -> None:
    with Impatient.running() as wire:
        with pytest.raises(RateLimitError) as caught:
            await asked(OpenAIModel("rate-limit", base_url=f"{wire.url}/v1"))
        assert caught.value.retry_after == 0.25


class Dated(OpenAIWire):
    """Says when to try again by a date, as gateways may."""

    def failure(self, scenario: str) -> Failure:
        return replace(super().failure(scenario), headers={"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"})


async def test_a_date_to_try_again_is_waited_for() -> None:
    with Dated.running() as wire:
        with pytest.raises(RateLimitError) as caught:
            await asked(OpenAIModel("rate-limit", base_url=f"{wire.url}/v1"))
        assert caught.value.retry_after is not None
        assert caught.value.retry_after > 1e9


class Endless(OpenAIWire):
    """Ends no stream with `[DONE]`; some have no usage either."""

    def events(self, seen: Seen, said: Said) -> list[str]:
        events = super().events(seen, said)
        return events[:-2] if seen.scenario == "held-uncounted" else events[:-1]


@pytest.mark.parametrize(("scenario", "tokens"), [("held", 8), ("held-uncounted", 0)])
async def test_a_stream_that_is_held_open_ends_after_its_finish_reason_and_usage(scenario: str, tokens: int) -> None:
    with Endless.running() as wire:
        held = OpenAIModel(scenario, base_url=f"{wire.url}/v1")
        reply = await collect(held.stream(HELLO.model_copy(update={"timeout": SOON})))
        await held.aclose()
    assert reply.text == "You said: hello there"
    assert reply.usage.total_tokens == tokens


async def test_a_reply_that_has_ended_counts_when_the_time_of_its_call_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_model, "SILENCE_SECONDS", SOON)
    with Endless.running() as wire:
        held = OpenAIModel("held", base_url=f"{wire.url}/v1")
        reply = await collect(held.stream(HELLO.model_copy(update={"timeout": 2.0})))
        await held.aclose()
    assert (reply.text, reply.usage.total_tokens) == ("You said: hello there", 8)


@pytest.mark.skipif(openai.__version__ < "3", reason="openai 2 closes the connection of every stream")
async def test_streams_keep_their_connection_for_the_next(wire: OpenAIWire) -> None:
    made = OpenAIModel("echo", base_url=f"{wire.url}/v1")
    before = wire.connections
    for _ in range(5):
        await collect(made.stream(HELLO))
    await made.aclose()
    assert wire.connections == before + 1


def test_without_the_library_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['openai'] = None; import rl_conductor; rl_conductor.models.model('openai:gpt-5')"
    code = code.replace("import rl_conductor;", "import rl_conductor.models;")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'rl-conductor[openai]'" in run.stderr.splitlines()[-1]


async def asked(made: OpenAIModel, request: Request = HELLO) -> str:
    """The reply's text, from a model that is closed afterwards."""
    try:
        return (await made.complete(request)).text
    finally:
        await made.aclose()


# ----------------------------------------------------------------------------------------- reasoning


def test_where_replies_begin_is_known_of_openai_and_declared_of_other_servers() -> None:
    url = "http://localhost:1/v1"
    assert OpenAIModel("gpt-5", api_key="x").capabilities.reasoning_start == "outside"
    assert OpenAIModel("r1", base_url=url).capabilities.reasoning_start == "unknown"
    assert model("ollama:r1", reasoning_start="inside").capabilities.reasoning_start == "inside"
    given = OpenAIModel("r1", base_url=url, capabilities=Capabilities(tools=True), reasoning_start="outside")
    assert given.capabilities == Capabilities(tools=True, reasoning_start="outside")


def test_a_reasoning_start_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="no reasoning_start 'within': write one of inside, outside, unknown"):
        model("ollama:r1", reasoning_start="within")


@pytest.mark.parametrize(
    ("name", "options", "bounded"),
    [
        ("openai:gpt-5", {}, True),
        ("openai:ft:gpt-5:mine", {}, False),
        ("openai:gpt-5", {"base_url": "https://mine.openai.azure.com/openai"}, False),
        ("openai:x", {"base_url": "http://127.0.0.1:9/v1"}, False),
        ("openrouter:x/y", {}, False),
        ("vllm-server:x", {}, True),
    ],
)
def test_array_bounds_go_only_where_a_strict_schema_may_have_them(
    name: str, options: dict[str, str], bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENROUTER_API_KEY", "k")
    made = model(name, **options) if name.startswith(("openrouter", "vllm")) else model(name, api_key="k", **options)
    assert made.capabilities.array_bounds == bounded


async def test_a_request_longer_than_the_stated_context_is_never_sent() -> None:
    model = OpenAIModel("m", base_url="http://127.0.0.1:9/v1", api_key="k", context=100)
    calls: list[Call] = []
    call = ModelCall(run=RunContext(), model=model, request=Request.user("x" * 700), calls=calls)

    with pytest.raises(ContextLengthError, match="116 tokens or more, but the model's context is 100"):
        await call.complete()
    assert [(each.outcome, each.usage.calls) for each in calls] == [("refused", 0)]
