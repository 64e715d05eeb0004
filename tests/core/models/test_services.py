"""Services with OpenAI's protocol: each sends its own key to its own address, in its own dialect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_conductor import ConfigError, ModelError, WorkerPool
from rl_conductor.models import model
from rl_conductor.models.openai.adapter import OpenAIModel
from rl_conductor.models.prices import price_of
from rl_conductor.types import Request, Sampling

from .wire.base import SECRET
from .wire.openai import OpenAIWire

HELLO = Request.user("hello there", sampling=Sampling(seed=7))
SERVICES = ("deepseek", "fireworks", "groq", "mistral", "openrouter", "together", "xai")


@pytest.fixture(scope="module")
def wire() -> Iterator[OpenAIWire]:
    with OpenAIWire.running() as wire:
        yield wire


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for service in (*SERVICES, "openai"):
        for variable in ("API_KEY", "BASE_URL"):
            monkeypatch.delenv(f"{service.upper()}_{variable}", raising=False)


@pytest.mark.parametrize("service", SERVICES)
async def test_each_service_sends_its_own_key_to_its_own_address(
    wire: OpenAIWire, monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    with pytest.raises(ConfigError, match=f"{service.upper()}_API_KEY"):
        model(f"{service}:echo")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-vendor")
    monkeypatch.setenv(f"{service.upper()}_API_KEY", SECRET)
    monkeypatch.setenv(f"{service.upper()}_BASE_URL", f"{wire.url}/v1")
    made = model(f"{service}:echo")
    reply = await made.complete(HELLO)
    await made.aclose()

    assert made.name == f"{service}:echo"
    assert reply.usage.output_tokens
    assert wire.last.headers["authorization"] == f"Bearer {SECRET}"
    assert "another-vendor" not in str(wire.last)


async def test_mistral_gets_no_field_that_it_does_not_know(wire: OpenAIWire) -> None:
    made = model("mistral:echo", base_url=f"{wire.url}/v1", api_key=SECRET, dialect="mistral")
    async for _ in made.stream(HELLO):
        pass
    await made.aclose()

    assert wire.last.body["stream"] is True
    assert wire.last.body["random_seed"] == 7
    assert wire.last.body.keys().isdisjoint({"seed", "stream_options"})


def test_prices_come_from_the_list_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XAI_API_KEY", SECRET)
    monkeypatch.setenv("DEEPSEEK_API_KEY", SECRET)
    for name, provider in (("xai:grok-4", "x-ai"), ("deepseek:deepseek-chat", "deepseek")):
        price = price_of(provider, name.partition(":")[2])
        assert price is not None
        assert model(name).price == price


async def test_without_a_key_no_authorization_is_sent(wire: OpenAIWire) -> None:
    made = OpenAIModel("echo", base_url=f"{wire.url}/v1")
    await made.complete(HELLO)
    await made.aclose()
    assert "authorization" not in wire.last.headers


# -------------------------------------------------------------------------------------- pool files


def pool_file(folder: Path, text: str) -> Path:
    path = folder / "pool.toml"
    path.write_text(text)
    return path


async def test_a_pool_file_holds_any_number_of_keyed_endpoints(
    wire: OpenAIWire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRST_KEY", "first-key-of-mine")
    monkeypatch.setenv("GATEWAY_TOKEN", SECRET)
    url = f'base_url = "{wire.url}/v1"'
    pool = WorkerPool.from_toml(
        pool_file(
            tmp_path,
            f'[workers.first]\nmodel = "openai:echo"\napi_key_env = "FIRST_KEY"\noptions = {{ {url} }}\n'
            f'[workers.second]\nmodel = "openai:echo"\nheaders_env = {{ X-Token = "GATEWAY_TOKEN" }}\n'
            f'options = {{ {url}, headers = {{ X-Team = "blue" }} }}\n',
        )
    )
    sent = []
    for worker in pool.values():
        await worker.model.complete(HELLO)
        sent.append(wire.last.headers)
    await pool.aclose()

    assert sent[0]["authorization"] == "Bearer first-key-of-mine"
    assert "x-token" not in sent[0]
    assert (sent[1]["x-token"], sent[1]["x-team"]) == (SECRET, "blue")
    assert "authorization" not in sent[1]


def test_a_missing_variable_is_named(tmp_path: Path) -> None:
    for setting in ('api_key_env = "NOT_SET_ANYWHERE"', 'headers_env = { X-Token = "NOT_SET_ANYWHERE" }'):
        text = f'[workers.a]\nmodel = "openai:echo"\n{setting}\noptions = {{ base_url = "http://127.0.0.1:9/v1" }}'
        with pytest.raises(ConfigError, match="environment variable NOT_SET_ANYWHERE is not set"):
            WorkerPool.from_toml(pool_file(tmp_path, text))


async def test_the_value_of_a_header_never_stands_in_an_error(wire: OpenAIWire) -> None:
    made = OpenAIModel("unauthorized", base_url=f"{wire.url}/v1", headers={"X-Token": SECRET})
    with pytest.raises(ModelError, match="Incorrect API key provided") as raised:
        await made.complete(HELLO)
    await made.aclose()

    assert wire.last.headers["x-token"] == SECRET
    assert SECRET not in str(raised.value) + repr(made)


def test_a_header_that_can_not_be_sent_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"headers\.X-Token is not a valid API key"):
        OpenAIModel("echo", base_url="http://127.0.0.1:9/v1", headers={"X-Token": "a\nb"})
