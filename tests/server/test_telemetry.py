"""Spans of a server: every run is in the trace of its caller."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import pytest

from core.runs import plan
from otlp import attributes, collector
from rl_conductor.telemetry import exporting
from server.conftest import Serve
from server.upstream import process, settings_file, vendor

BODY = {"model": "conductor-mini", "messages": [{"role": "user", "content": "Say something."}]}
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_a_run_goes_on_in_its_callers_trace_and_has_its_own_id(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector() as collected:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collected.url)
        with exporting():
            at = await serve()
            replies = [
                await at.http.post("/v1/chat/completions", json=BODY | {"stream": stream}, headers=headers)
                for stream, headers in ((False, {"traceparent": CALLER}), (True, {"traceparent": CALLER}), (False, {}))
            ]
    runs = {
        attributes(span)["rl_conductor.run.id"]: (span.trace_id.hex(), span.parent_span_id.hex())
        for span in collected.spans()
        if span.name == "invoke_workflow conductor-mini"
    }
    first, streamed, other = (runs[reply.headers["x-conductor-run"]] for reply in replies)
    assert first == streamed == (CALLER[3:35], CALLER[36:52])
    assert other[0] != CALLER[3:35]
    assert other[1] == ""


async def test_a_server_that_is_told_to_stop_sends_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as collected:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collected.url)
        async with vendor(planner=plan((0, "Say it.", [])), a="from a", b="from b", c="from c") as upstream:
            config = settings_file(tmp_path, upstream, f"sqlite:///{tmp_path / 'runs.db'}")
            async with process(config) as server:
                async with httpx.AsyncClient(base_url=server.url, timeout=20) as http:
                    assert (await http.post("/v1/chat/completions", json=BODY)).status_code == 200
                assert await server.end(signal.SIGTERM) == 0
    assert "invoke_workflow conductor-mini" in [span.name for span in collected.spans()]
    assert "gen_ai.client.token.usage" in collected.metric_names()
    assert b"secret-of-the-vendor" not in b"".join(request.SerializeToString() for request in collected.traces)
