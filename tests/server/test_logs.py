"""The lines of requests and runs."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote

import pytest

from rl_conductor.errors import ModelError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor_server.auth.key_secrets import hash_key
from rl_conductor_server.logs import formatter
from rl_conductor_server.settings import LogEntry
from server.chat_requests import post
from server.conftest import Serve

KEYS: Any = {"red": {"sha256": hash_key("key-of-red")}, "poor": {"sha256": hash_key("key-of-poor"), "tokens": 0}}
RED, POOR = {"authorization": "Bearer key-of-red"}, {"authorization": "Bearer key-of-poor"}
Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """The lines of the log, as JSON."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(formatter(LogEntry(format="json")))
    logger = logging.getLogger("rl_conductor_server")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    yield written
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture
def lines(stream: io.StringIO) -> Lines:
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


async def test_a_request_and_its_run_have_a_line_with_key_and_run(serve: Serve, lines: Lines) -> None:
    at = await serve(keys=KEYS)
    reply = await post(at, RED)
    run, request = (line for line in lines() if line["message"] != "upkeep failed")
    assert (run["message"], run["key"], run["status"], run["calls"]) == ("run ended", "red", "done", 2)
    assert (request["method"], request["path"], request["status"]) == ("POST", "/v1/chat/completions", 200)
    assert run["run"] == request["run"] == reply.headers["x-conductor-run"]
    assert (request["key"], request["client"], request["level"]) == ("red", "127.0.0.1", "INFO")
    assert request["seconds"] >= 0
    assert datetime.fromisoformat(request["time"]).tzinfo is not None


async def test_the_cause_of_a_rejection_is_logged(serve: Serve, lines: Lines) -> None:
    at = await serve(keys=KEYS)
    await post(at, POOR)
    await post(at, {"authorization": "Bearer wrong"})
    await post(at, RED, model="x")
    await at.http.get("/v1/nothing?text=a-secret-search")
    causes = [(line["status"], line.get("key"), line["cause"]) for line in lines() if "path" in line]
    assert causes == [
        (429, "poor", "insufficient_quota"),
        (401, None, "invalid_api_key"),
        (404, "red", "model_not_found"),
        (404, None, "unknown_url"),
    ]


async def test_neither_secrets_nor_content_are_logged(serve: Serve, stream: io.StringIO) -> None:
    broken = ScriptedModel([ModelError("failed at the-secret-question", model="a")] * 9)
    at = await serve({"a": broken}, keys=KEYS, admins={"admin": {"sha256": hash_key("key-of-admin")}})
    question = [{"role": "user", "content": "the-secret-question"}]
    body = {"model": "conductor-mini", "input": question, "store": False}
    assert (await at.http.post("/v1/responses", json=body, headers=RED)).status_code == 502
    await at.http.get("/admin/runs?key=the-secret-question", headers={"authorization": "Bearer key-of-admin"})
    await post(at, {"authorization": "Bearer key-of-nobody"})
    text = stream.getvalue()
    assert '"administrator": "admin"' in text
    assert "its error is not stored" in text
    for secret in ("key-of-", "the-secret-question", hash_key("key-of-red")):
        assert secret not in text


async def test_probes_are_logged_only_if_they_fail(serve: Serve, lines: Lines) -> None:
    at = await serve(keys=KEYS)
    for path in ("/healthz", "/readyz", "/metrics"):
        await at.http.get(path)
    assert [line["path"] for line in lines()] == ["/metrics"]


def test_text_lines_have_the_fields_at_their_end() -> None:
    record = logging.makeLogRecord(
        {"msg": "run ended", "levelname": "INFO", "run": "run-1", "key": "red", "cause": None}
    )
    assert formatter(LogEntry()).format(record).endswith("INFO run ended run=run-1 key=red")


async def test_no_text_of_clients_or_models_forges_a_line_or_a_field(serve: Serve, stream: io.StringIO) -> None:
    (handler,) = [each for each in logging.getLogger("rl_conductor_server").handlers if _stream_of(each) is stream]
    handler.setFormatter(formatter(LogEntry(format="text")))
    forged = "\n2026-01-01 INFO run ended key=admin\x1b[2J\u2028x"
    broken = ScriptedModel([ModelError(f"failed{forged}", model="a")] * 9)
    at = await serve({"a": broken})
    await at.http.get(f"/v1/models/{quote(forged)}")
    assert (await post(at)).status_code == 502
    written = stream.getvalue()
    assert [line.split(" ", 3)[2] for line in written.splitlines()] == ["INFO"] * 3
    assert "\x1b" not in written
    (run,) = [line for line in written.splitlines() if " run ended " in line]
    assert run.count(" key=") - run.partition(' cause="')[2].count(" key=") == 1
    assert "\\n2026-01-01" in run


@pytest.mark.parametrize("store", [True, False])
async def test_the_reason_of_a_failed_call_is_logged_only_if_the_request_is_stored(
    serve: Serve, caplog: pytest.LogCaptureFixture, *, store: bool
) -> None:
    broken = ScriptedModel(lambda _: ModelError("your prompt 'patient 7' is odd", model="a"))
    at = await serve({"a": broken, "b": broken})
    with caplog.at_level(logging.INFO):
        assert (await post(at, store=store)).status_code == 502
    assert "a call to scripted:scripted failed" in caplog.text
    assert ("patient 7" in caplog.text) is store


def test_a_traceback_does_not_look_like_lines_of_the_log() -> None:
    error = ValueError("bad\n2026-01-01 INFO forged")
    values = {"msg": "a request\nfailed", "levelname": "ERROR", "exc_info": (ValueError, error, None)}
    record = logging.makeLogRecord(values)
    first, *rest = formatter(LogEntry()).format(record).splitlines()
    assert first.endswith("ERROR a request\\nfailed")
    assert any("forged" in line for line in rest)
    assert all(line.startswith("  ") for line in rest)


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "key",
    [
        "sk-proj-Abc0123456789",
        "sk-ant-ab***********yz",
        "sk-ab...wxyz",
        "Bearer eyJhbGciOi.eyJzdWIi.c2lnbmF0dXJl9",
        "bearer 0123456789abcdef",
        "BEARER abcdefghijklmnopqrstuvwxyz",
        "X-API-Key: 0123456789abcdef",
        "ghp_0123456789abcdefghij",
        "fw_0123456789abcdefghij",
        "nvapi-0123456789abcdefghij",
        "sk-abcdefghijklmnopqrstuvwxyz",
        "AIzaSyA-0123456789abcdef",
        "AKIA0123456789ABCDEF",
        "rlc_Whh54MMQ2aRdWR_r2OwB2cJqUxwHQk8YYPjwWroIVCA",
    ],
)
def test_what_looks_like_a_key_is_logged_neither_in_messages_nor_fields_nor_tracebacks(
    form: Literal["text", "json"], key: str
) -> None:
    error = ValueError(f"the header was {key}")
    values = {"msg": f"refused: {key}!", "exc_info": (ValueError, error, None), "cause": f"{key} is wrong"}
    line = formatter(LogEntry(format=form)).format(logging.makeLogRecord(values))
    assert key.rsplit(maxsplit=1)[-1] not in line
    assert line.count("[secret]") == 3
    assert form == "text" or json.loads(line)["message"] == "refused: [secret]!"


@pytest.mark.parametrize(
    "text",
    [
        "Bearer authentication failed",
        "a task-force-of-many",
        "sk-learn-contrib",
        "sk-mixtral-8x7b",
        "run-0123456789abcdef",
    ],
)
def test_words_that_only_resemble_a_key_are_logged(text: str) -> None:
    assert text in formatter(LogEntry()).format(logging.makeLogRecord({"msg": text}))


def _stream_of(handler: logging.Handler) -> object:
    return getattr(handler, "stream", None)


def test_a_library_that_rejects_a_header_does_not_quote_it() -> None:
    program = """
from rl_conductor.telemetry import called_by
from rl_conductor_server.logs import configure_logging
from rl_conductor_server.settings import LogEntry
configure_logging(LogEntry())
with called_by({"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "anything at all"}):
    pass
"""
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ended.stderr == ""
