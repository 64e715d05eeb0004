"""Discovery of keys and local servers, and the reasons of each choice."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from core.pools import TRAINED
from core.scripted_guardrails import Hide
from rl_conductor.cli.options import RunOptions
from rl_conductor.conductor import Conductor
from rl_conductor.config import discovery
from rl_conductor.config.discovered_pool import DiscoveredPool
from rl_conductor.config.discovery import EMBEDDED, MAX_SERVER_MODELS, VENDORS, discover
from rl_conductor.config.profiles import ProfileName
from rl_conductor.config.server_models import list_server_models, read_server_models
from rl_conductor.errors import ConfigError
from rl_conductor.models.endpoints import ENDPOINTS
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.planning.planner import Planner
from rl_conductor.planning.routing.domain import Domain
from rl_conductor.planning.routing.linear_score import LinearScore
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.types import FREE, Card, Price
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy
from rl_conductor_server.catalog import build_catalog


@contextmanager
def listening(answer: Callable[[socket.socket], None], heard: list[bytes] | None = None) -> Iterator[str]:
    """A server that says whatever it likes to whoever connects; what it was told is added to `heard`."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    told = client.recv(65536)
                    if heard is not None:
                        heard.append(told)
                    answer(client)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextmanager
def listing(*names: str) -> Iterator[str]:
    """A server that lists these models."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/v1/models"
            body = json.dumps({"data": [{"id": name} for name in names]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def _nothing_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "SERVERS", {})
    for provider in discovery.VENDORS:
        for name in ENDPOINTS[provider].key_variables:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv(discovery.POOL_VARIABLE, raising=False)


def pool_file(tmp_path: Path, *, planner: str = "") -> Path:
    path = tmp_path / "pool.toml"
    path.write_text(f'[workers.a]\nmodel = "ollama:small"\n[workers.b]\nmodel = "ollama:big"\n{planner}')
    return path


def test_a_pool_file_goes_before_everything_else(tmp_path: Path) -> None:
    path = pool_file(tmp_path)

    for found in (
        discover({"OPENAI_API_KEY": "sk-1"}, pool_file=path),
        discover({"OPENAI_API_KEY": "sk-1", "RL_CONDUCTOR_POOL": str(path)}),
    ):
        assert list(found.pool) == ["a", "b"]
        assert found.planner.model is found.pool["a"].model
        assert found.reasons[1] == "its first language model is also the planner: ollama:small"
        assert str(path) in found.reasons[0]


def test_a_function_of_a_pool_file_is_not_its_planner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "clocks.py").write_text("def clock(subtask: str) -> str:\n    return 'noon'\n")
    path = tmp_path / "pool.toml"
    path.write_text('[workers.clock]\nmodel = "clocks:clock"\n')

    message = r"none of the workers can plan.*: clock; add a language model, or write .* table \[planner\] with model ="
    with pytest.raises(ConfigError, match=message):
        discover({}, pool_file=path)
    path.write_text(path.read_text() + '[workers.a]\nmodel = "ollama:small"\n')
    assert discover({}, pool_file=path).planner.model.name == "ollama:small"


def test_a_pool_file_may_name_its_planner(tmp_path: Path) -> None:
    found = discover({}, pool_file=pool_file(tmp_path, planner='[planner]\nmodel = "ollama:conductor"'))

    assert found.planner.model.name == "ollama:conductor"
    assert "using its planner" in found.reasons[1]


def test_a_trained_planner_is_asked_as_its_pool_file_says(tmp_path: Path) -> None:
    path = pool_file(tmp_path, planner=TRAINED)

    for made in (Conductor.from_env(pool_file=path), RunOptions(pool=path).conductor()[0], ultra_over(path)):
        planner = made.planner
        assert (planner.form, planner.roster, planner.examples, planner.samples) == ("rows", "ordinals", 0, 2)
        assert planner.timeout == 300
        assert (planner.sampling.max_tokens, planner.sampling.temperature) == (200, 0.0)
        assert (made.config.access, made.limits.steps) == ("positional", 3)


def ultra_over(path: Path) -> Conductor:
    served = build_catalog(discover({}, pool_file=path), {})
    return served.find("conductor-ultra").conductor


@pytest.mark.parametrize(
    ("environ", "providers"),
    [
        ({"OPENAI_API_KEY": "sk-1"}, ["openai"]),
        ({"ANTHROPIC_API_KEY": "sk-1"}, ["anthropic"]),
        ({"GEMINI_API_KEY": "sk-1"}, ["google"]),
        ({"GOOGLE_API_KEY": "sk-1"}, ["google"]),
        ({"OPENAI_API_KEY": "sk-1", "GEMINI_API_KEY": "sk-2"}, ["openai", "google"]),
        ({"OPENAI_API_KEY": "", "GEMINI_API_KEY": "sk-2"}, ["google"]),
    ],
)
def test_each_key_brings_a_strong_and_a_fast_model(environ: dict[str, str], providers: list[str]) -> None:
    found = discover(environ)

    assert [worker.model.name.partition(":")[0] for worker in found.pool.values()] == [
        provider for provider in providers for _ in range(2)
    ]
    assert all(worker.card.tags >= {"external"} for worker in found.pool.values())
    strong, fast, *_ = found.pool.values()
    assert found.planner.model is strong.model
    assert found.economy_planner is not None
    assert found.economy_planner.model is fast.model
    assert not any("sk-" in reason for reason in found.reasons)
    assert not found.embedded


def without_library(monkeypatch: pytest.MonkeyPatch, *vendors: str) -> None:
    for vendor in vendors:
        monkeypatch.delitem(sys.modules, f"rl_conductor.models.{vendor}.adapter", raising=False)
        monkeypatch.setitem(sys.modules, vendor, None)


def test_the_page_on_pools_names_the_models_of_each_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "pools.md").read_text(encoding="utf-8")
    for provider, vendor in VENDORS.items():
        keys = " or ".join(f"`{key}`" for key in ENDPOINTS[provider].key_variables)
        assert f"| {keys} | `{vendor.strong}` | `{vendor.fast}` |" in page


def test_a_vendor_without_its_library_is_left_out_and_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    without_library(monkeypatch, "anthropic")
    found = discover({"ANTHROPIC_API_KEY": "sk-1", "GEMINI_API_KEY": "sk-2"})

    assert {worker.model.name.partition(":")[0] for worker in found.pool.values()} == {"google"}
    assert "ANTHROPIC_API_KEY is set, but can't be used: Anthropic's models need its SDK: pip" in found.reasons[1]


def test_a_key_that_is_none_leaves_its_vendor_out() -> None:
    found = discover({"ANTHROPIC_API_KEY": "sk-1\u2019", "GEMINI_API_KEY": "sk-2\n"})

    assert {worker.model.name.partition(":")[0] for worker in found.pool.values()} == {"google"}
    assert "ANTHROPIC_API_KEY is not a valid API key" in found.reasons[1]
    assert not any("sk-" in reason for reason in found.reasons)


def test_keys_of_which_none_can_be_used_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    without_library(monkeypatch, "anthropic", "openai")
    with pytest.raises(ConfigError, match=r"rl-conductor\[openai\].*rl-conductor\[anthropic\]"):
        discover({"ANTHROPIC_API_KEY": "sk-1", "OPENAI_API_KEY": "sk-2"})


def test_a_named_server_is_asked_what_it_serves() -> None:
    with listing("x", "y", "x") as address:
        found = discover({"OPENAI_BASE_URL": address})

    assert list(found.pool) == ["x", "y"]
    assert "from OPENAI_BASE_URL" in found.reasons[0]


def test_openais_key_is_for_the_server_that_is_named_beside_it() -> None:
    with listing("x") as address:
        found = discover({"OPENAI_BASE_URL": address, "OPENAI_API_KEY": "sk-1"})

    assert list(found.pool) == ["x"]


def test_names_of_models_that_no_worker_can_have_are_left_out() -> None:
    with listing("x", "\x1b]0;title\x07", "two\nlines", " ", "y") as address:
        assert list(discover({"OPENAI_BASE_URL": address}).pool) == ["x", "y"]


def test_a_named_server_may_cost_something_on_this_machine_too() -> None:
    with listing("x") as address:
        found = discover({"OPENAI_BASE_URL": address})

    assert found.pool["x"].card.price is None


def test_a_server_on_this_machine_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with listing(*(f"m{i}" for i in range(20))) as address:
        monkeypatch.setattr(discovery, "SERVERS", {"http://127.0.0.1:1/v1": "vllm", address: "compatible"})
        found = discover({})

    assert len(found.pool) == MAX_SERVER_MODELS
    assert all(card.price == FREE for card in found.pool.cards)
    assert "found on this machine" in found.reasons[0]


def test_a_named_server_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:1.*can't be reached .*; start the server, or unset"):
        discover({"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"})


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 401 -\r\ncontent-length: 0\r\n\r\n", "status 401; set OPENAI_API_KEY to a key of this server"),
        (b"HTTP/1.1 404 -\r\ncontent-length: 0\r\n\r\n", "status 404; an address often ends in '/v1'"),
        (b"HTTP/1.1 503 -\r\ncontent-length: 0\r\n\r\n", "status 503; try again later"),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n<html>", "its answer lists no models; an address often ends"),
    ],
)
def test_a_named_server_that_lists_no_models_says_why(answer: bytes, says: str) -> None:
    with (
        listening(lambda client: client.sendall(answer)) as address,
        pytest.raises(ConfigError, match=f"OPENAI_BASE_URL is '{address}', .*{says}.*, or unset"),
    ):
        discover({"OPENAI_BASE_URL": address})


def test_a_named_server_gets_more_time_than_one_that_may_be_on_this_machine() -> None:
    body = b'{"data": [{"id": "x"}]}'

    def answer_late(client: socket.socket) -> None:
        time.sleep(0.7)
        client.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + body)

    with listening(answer_late) as address:
        assert list_server_models(address) == []
    with listening(answer_late) as address:
        assert list(discover({"OPENAI_BASE_URL": address}).pool) == ["x"]


def test_a_password_in_an_address_is_not_shown() -> None:
    with pytest.raises(ConfigError, match=r"'http://127\.0\.0\.1:1/v1'"):
        discover({"OPENAI_BASE_URL": "http://me:pass-word@127.0.0.1:1/v1"})
    with pytest.raises(ConfigError) as without_port:
        discover({"OPENAI_BASE_URL": "http://me:pass-word@127.0.0.1/v1"})
    assert "pass-word" not in str(without_port.value)


def test_a_password_in_an_address_is_sent_as_in_calls() -> None:
    heard: list[bytes] = []
    with listening(lambda _: None, heard) as address, pytest.raises(ConfigError, match="can't be reached"):
        read_server_models(address.replace("://", "://me:pass%20word@"), key="sk-1")
    assert b"Authorization: Basic " + b64encode(b"me:pass word") + b"\r\n" in heard[0]


def test_a_key_with_a_line_break_behind_it_is_one() -> None:
    heard: list[bytes] = []
    with listening(lambda _: None, heard) as address, pytest.raises(ConfigError, match="lists its models"):
        discover({"OPENAI_BASE_URL": address, "OPENAI_API_KEY": "sk-1\n"})
    assert b"Authorization: Bearer sk-1\r\n" in heard[0]


def test_a_key_is_not_taken_where_a_redirect_leads() -> None:
    heard: list[bytes] = []

    def send_on(client: socket.socket) -> None:
        client.sendall(f"HTTP/1.1 302 -\r\nlocation: {other}/models\r\ncontent-length: 0\r\n\r\n".encode())

    with listening(lambda _: None, heard) as other, listening(send_on, heard) as address, pytest.raises(ConfigError):
        read_server_models(address, key="sk-1")
    request, followed = heard
    assert b"sk-1" in request
    assert b"sk-1" not in followed


ODD = {
    "not HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "nothing": b"",
    "not JSON": b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n<html>",
    "other JSON": b'HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{"models": []}',
    "a list": b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n[1]",
    "no names": b'HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{"data": [{}]}',
    "not text": b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n\xff\xfe\x00",
    "cut off": b'HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n{"data"',
    "too deep": b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + b"[" * 200_000,
    "refused": b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n",
}


@pytest.mark.parametrize("answer", ODD.values(), ids=ODD)
def test_something_else_on_the_port_is_passed_over(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    with listening(lambda client: client.sendall(answer)) as address:
        monkeypatch.setattr(discovery, "SERVERS", {address: "compatible"})
        assert discover({}).embedded


@pytest.mark.parametrize(
    ("end_of_headers", "piece", "pause"),
    [(b"\r\n", b"x" * 65_536, 0.0), (b"\r\n", b" ", 0.05), (b"server: ", b"x", 0.05)],
    ids=["large", "slow", "slow headers"],
)
def test_a_reply_on_the_port_that_never_ends_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, end_of_headers: bytes, piece: bytes, pause: float
) -> None:
    def send_forever(client: socket.socket) -> None:
        client.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\n" + end_of_headers)
        with suppress(OSError):
            while not done.wait(pause):
                client.sendall(piece)

    done = threading.Event()
    with listening(send_forever) as address:
        monkeypatch.setattr(discovery, "SERVERS", {address: "compatible"})
        assert discover({}).embedded
        done.set()


def test_an_address_that_is_none_is_an_error() -> None:
    with pytest.raises(ConfigError, match="'nonsense'"):
        discover({"OPENAI_BASE_URL": "nonsense"})


def test_a_bare_machine_has_tiny_models_in_process_and_says_so() -> None:
    found = discover({})

    assert (found.embedded, list(found.pool)) == (True, list(EMBEDDED))
    assert "tiny" in found.reasons[0]
    assert "at most 3 steps" in found.reasons[1]
    assert Conductor.from_discovered(found).limits == found.limits


@pytest.mark.parametrize(("profile", "steps"), [(None, 3), ("mini", 2), ("ultra", 3)])
def test_no_profile_makes_plans_longer_than_tiny_models_are_good_for(profile: ProfileName | None, steps: int) -> None:
    assert Conductor.from_env(profile=profile).limits.steps == steps
    assert RunOptions(profile=profile).conductor()[0].limits.steps == steps
    assert RunOptions(profile=profile, steps=5).conductor()[0].limits.steps == 5


def test_a_conductor_is_made_from_what_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_CONDUCTOR_POOL", str(pool_file(tmp_path)))

    assert list(Conductor.from_env().pool) == ["a", "b"]
    assert Conductor.from_env(profile="mini").limits.steps == 2
    assert Conductor.from_env(profile="ultra").limits.rounds == 2
    assert Conductor.from_env(profile="ultra", limits=Limits(steps=4)).limits == Limits(steps=4)
    with pytest.raises(ConfigError, match="'mini' or 'ultra'"):
        Conductor.from_env(profile="huge")


def test_mini_plans_with_a_fast_model_and_ultra_with_a_strong_one() -> None:
    found = discover({"OPENAI_API_KEY": "sk-1"})
    strong, fast = found.pool.values()

    assert Conductor.from_discovered(found).planner.model is strong.model
    assert Conductor.from_discovered(found, profile="ultra").planner.model is strong.model
    assert Conductor.from_discovered(found, profile="mini").planner.model is fast.model

    own = Planner(model=strong.model, samples=1)
    assert Conductor.from_discovered(found.with_planner(own), profile="mini").planner is own


def test_instructions_are_for_every_planner_that_may_plan() -> None:
    found = discover({"OPENAI_API_KEY": "sk-1"})
    domain = Domain(score=LinearScore(), threshold=0.5, accepted=1.0, refused=1.0)
    trained = replace(found.planner, domain=domain, general=found.planner)

    told = replace(found, planner=trained).with_instructions("Check twice.")

    for profile in ("mini", "ultra"):
        planners = told.with_profile(profile).planner.planners
        assert {planner.instructions for planner in planners} == {"Check twice."}


def test_a_profile_changes_the_order_and_the_limits_and_nothing_else() -> None:
    dear = Worker.of("dear", ScriptedModel("Hi.", price=Price(input=9, output=9)))
    pool = WorkerPool([dear, Worker.of("cheap", ScriptedModel("Hi."))])
    found = DiscoveredPool(planner=Planner.from_pool(pool), pool=pool, access="positional", limits=Limits(steps=3))

    mini = found.with_settings(profile="mini")

    assert list(mini.pool) == ["cheap", "dear"]
    assert (mini.limits.steps, mini.limits.rounds) == (2, 1)
    assert mini == replace(found, pool=mini.pool, limits=mini.limits)
    assert found.with_settings(profile="mini", limits=Limits(steps=4)).limits == Limits(steps=4)
    assert found.with_settings(profile="ultra").limits.steps == 3
    assert found.with_settings() == found


def test_settings_replace_those_that_were_found() -> None:
    found, guardrails = discover({}), (Hide(),)

    changed = found.with_settings(
        policy=Policy(final="writer"),
        rounds=3,
        retries=0,
        access="positional",
        instructions="Check twice.",
        guardrails=guardrails,
        name="house",
    )

    assert changed == replace(
        found,
        planner=found.planner.with_instructions("Check twice."),
        policy=Policy(final="writer"),
        limits=found.limits.model_copy(update={"rounds": 3}),
        retries=0,
        access="positional",
        guardrails=guardrails,
        name="house",
    )
    assert found.with_settings(profile="mini", limits=Limits(steps=4), rounds=3).limits == Limits(steps=4, rounds=3)


def test_data_rules_know_where_a_planner_is(tmp_path: Path) -> None:
    own = pool_file(tmp_path, planner='[planner]\nmodel = "ollama:small"\nregion = "eu"\ntags = ["approved"]')
    assert discover({}, pool_file=own).planner.card == Card(name="planner", region="eu", tags=frozenset({"approved"}))

    own.write_text('[workers.a]\nmodel = "ollama:small"\nregion = "eu"\n')
    assert discover({}, pool_file=own).planner.card == Card(name="planner", region="eu")


def test_with_no_key_no_server_and_no_extra_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_conductor.config.discovery.SERVERS", {})
    for module in [name for name in sys.modules if name.startswith("rl_conductor.models.llamacpp")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "xllamacpp", None)

    with pytest.raises(ConfigError) as caught:
        discover({})

    assert str(caught.value) == (
        "no model is available: found no API key, no local server and no pool file, and the built-in models are not "
        "installed. Set one of OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY, start a server (Ollama, vLLM, "
        "llama.cpp, LM Studio), pass a pool file, or run: pip install 'rl-conductor[local]'"
    )
