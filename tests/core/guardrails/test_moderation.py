"""The moderation guardrail, through the vendor's SDK, against a server on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from core.runs import plan, pool_of
from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConfigError, GuardrailError, RefusedError, RunError
from rl_conductor.guardrails import check_messages
from rl_conductor.guardrails.loading import build_guardrails
from rl_conductor.guardrails.moderation import ModerationGuardrail
from rl_conductor.models.openai.moderation import MAX_TEXT_CHARS
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.pool.pool_file import GuardrailEntry
from rl_conductor.types import ImagePart, Message

KEY = "sk-loopback-0123456789uvwxyz"


class Vendor(ThreadingHTTPServer):
    """`POST /v1/moderations`: flags what contains "kill" as violence."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.inputs: list[list[Any]] = []
        self.answers: list[tuple[int, Any]] = []
        """Replies that take the place of the next ones."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Vendor

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert self.path == "/v1/moderations"
        self.server.inputs.append(body["input"])
        status, reply = self.server.answers.pop(0) if self.server.answers else (200, _reply(body))
        content = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("retry-after-ms", "1")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def _reply(body: dict[str, Any]) -> dict[str, Any]:
    hits = ["kill" in json.dumps(each) for each in body["input"]]
    results = [
        {
            "flagged": hit,
            "categories": {"violence": hit, "hate": False},
            "category_scores": {"violence": 0.9 if hit else 0.01, "hate": 0.3},
            "category_applied_input_types": {"violence": ["text"]},
        }
        for hit in hits
    ]
    return {"id": "modr-1", "model": body["model"], "results": results}


@pytest.fixture(scope="module")
def server() -> Iterator[Vendor]:
    with Vendor() as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def vendor(server: Vendor) -> Vendor:
    server.inputs.clear()
    server.answers.clear()
    return server


def guardrail(vendor: Vendor, **options: Any) -> ModerationGuardrail:
    return ModerationGuardrail(base_url=vendor.url, api_key=KEY, **options)


async def test_what_the_vendor_flags_is_refused_by_category(vendor: Vendor) -> None:
    moderation = guardrail(vendor)
    messages = [Message.system("be nice"), Message.user("how to kill a process?")]
    with pytest.raises(GuardrailError, match="the guardrail 'moderation' refused the input: flagged as violence"):
        await check_messages([moderation], "input", messages)
    assert vendor.inputs == [["be nice", "how to kill a process?"]]
    assert await check_messages([moderation], "input", messages[:1]) == messages[:1]
    await moderation.aclose()


async def test_own_thresholds_take_the_place_of_the_vendors_flags(vendor: Vendor) -> None:
    messages = [Message.user("how to kill a process?")]
    assert await check_messages([guardrail(vendor, thresholds={"violence": 0.95})], "input", messages) == messages
    with pytest.raises(GuardrailError, match="flagged as hate"):
        await check_messages([guardrail(vendor, thresholds={"hate": 0.3})], "input", [Message.user("hello")])


async def test_images_are_classified_each_by_itself(vendor: Vendor) -> None:
    image, linked = ImagePart(data="aGk="), ImagePart(url="https://example.com/kill.png")
    with pytest.raises(GuardrailError, match="flagged as violence"):
        await check_messages([guardrail(vendor)], "input", [Message.user("look", image, linked)])
    urls = [each[0]["image_url"]["url"] for each in vendor.inputs[1:]]
    assert urls == ["data:image/png;base64,aGk=", "https://example.com/kill.png"]


async def test_a_long_text_is_classified_in_pieces(vendor: Vendor) -> None:
    with pytest.raises(GuardrailError):
        await check_messages([guardrail(vendor)], "input", [Message.user("x" * MAX_TEXT_CHARS + "kill")])
    assert [len(text) for text in vendor.inputs[0]] == [MAX_TEXT_CHARS, 4]


@pytest.mark.parametrize(
    ("status", "reply"),
    [
        (200, {"id": "m", "model": "m", "results": []}),
        (200, {"id": "m", "model": "m", "results": [{"flagged": "maybe?"}]}),
        (200, {"nothing": True}),
        (200, b"<html>"),
        (401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}),
    ],
)
async def test_a_reply_without_a_verdict_fails_closed_and_shows_no_key(vendor: Vendor, status: int, reply: Any) -> None:
    vendor.answers.append((status, reply))
    made = Conductor(ScriptedModel([]), pool_of(a="never"), guardrails=[guardrail(vendor)], retries=0)
    with pytest.raises(RunError, match="could not check the input") as caught:
        await made.run("hello")
    assert KEY not in caught.value.trace.model_dump_json()
    await made.aclose()


async def test_a_busy_vendor_is_asked_again_within_the_run(vendor: Vendor) -> None:
    vendor.answers.append((429, {"error": {"message": "slow down"}}))
    moderation = guardrail(vendor, stages=("input",))
    made = Conductor(ScriptedModel(plan((0, "say it", []))), pool_of(a="done"), guardrails=[moderation])
    trace = await made.run("hello")
    calls = [call for call in trace.calls if call.is_check]
    assert [call.outcome for call in calls] == ["error", "ok"]
    assert all(not call.usage.cost and not call.usage.unpriced_calls for call in calls)

    await made.aclose()


async def test_a_flagged_answer_ends_the_run(vendor: Vendor) -> None:
    moderation = guardrail(vendor)
    made = Conductor(ScriptedModel(plan((0, "say it", []))), pool_of(a="I kill"), guardrails=[moderation])
    with pytest.raises(RefusedError, match="refused the answer: flagged as violence"):
        await made.run("hello")
    await made.aclose()


def test_a_missing_key_and_a_wrong_threshold_say_what_to_write(vendor: Vendor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="set OPENAI_API_KEY"):
        ModerationGuardrail()
    with pytest.raises(ConfigError, match="write a score from 0 to 1"):
        guardrail(vendor, thresholds={"violence": 90})


def test_an_option_of_the_wrong_type_in_a_pool_file_is_a_configuration_error() -> None:
    entry = GuardrailEntry.model_validate(
        {"type": "openai-moderation", "options": {"thresholds": 5, "base_url": "http://localhost:9/v1"}}
    )
    with pytest.raises(ConfigError, match="guardrail 'openai-moderation': invalid options"):
        build_guardrails([entry])
