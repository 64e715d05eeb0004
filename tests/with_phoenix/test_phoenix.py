"""Spans of a run arrive in a real Phoenix, which reads steps, messages and tokens out of them."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rl_conductor import Conductor, ScriptedModel, WorkerPool
from rl_conductor.telemetry import exporting
from rl_conductor.types import Price

START_SECONDS = 180
PLAN = 'model_id = [0, 1]\nsubtasks = ["Find the number.", "Say it."]\naccess_list = [[], ["all"]]'


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a Phoenix that is running."""
    folder = tmp_path_factory.mktemp("phoenix")
    port = free_port()
    settings = {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [os.environ["PHOENIX"], "serve"], env=os.environ | settings, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            wait_until_ready(client, process, folder / "log")
            yield client
    finally:
        process.terminate()
        process.wait()


def wait_until_ready(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            client.get("/healthz").raise_for_status()
        except httpx.HTTPError:
            time.sleep(0.2)
        else:
            return
    raise AssertionError(f"Phoenix did not start: {log.read_text()[-2000:]}")


def received(phoenix: httpx.Client, names: set[str]) -> dict[str, dict[str, Any]]:
    """Returns Phoenix's spans by name, once all have arrived."""
    end = time.monotonic() + 60
    spans: dict[str, dict[str, Any]] = {}
    while time.monotonic() < end and not names <= spans.keys():
        reply = phoenix.get("/v1/projects/support/spans", params={"limit": 100})
        spans = {span["name"]: span for span in reply.json()["data"]} if reply.is_success else {}
        time.sleep(0.1)
    return spans


async def test_phoenix_shows_the_steps_their_messages_and_tokens(
    phoenix: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{phoenix.base_url}/v1/traces")
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "span_only")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "openinference.project.name=support")
    price = Price(input=1, output=2)
    workers = {name: ScriptedModel(f"from {name}", name=name, price=price) for name in ("finder", "writer")}
    warnings: list[str] = []
    with exporting(warnings.append):
        trace = await Conductor(
            ScriptedModel(PLAN, name="planner", price=price), WorkerPool(workers), name="house"
        ).run("What is the number?")
    assert warnings == []
    names = {
        *("invoke_workflow house", "plan house", "chat planner"),
        *("invoke_agent finder", "chat finder", "invoke_agent writer", "chat writer"),
    }
    spans = received(phoenix, names)
    assert spans.keys() == names
    run, step, call = (spans[name] for name in ("invoke_workflow house", "invoke_agent writer", "chat writer"))
    assert run["parent_id"] is None
    assert step["parent_id"] == run["context"]["span_id"]
    assert call["parent_id"] == step["context"]["span_id"]
    assert (step["span_kind"], call["span_kind"]) == ("AGENT", "LLM")
    assert run["attributes"]["rl_conductor.run.id"] == trace.id
    # Phoenix's own names, into which it has converted ours:
    assert call["attributes"]["llm.output_messages.0.message.content"] == "from writer"
    assert "from finder" in call["attributes"]["llm.input_messages.0.message.content"]
    tokens = [span["attributes"]["llm.token_count.total"] for name, span in spans.items() if name.startswith("chat")]
    assert sum(tokens) == trace.usage.total_tokens > 0
