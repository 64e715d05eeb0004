"""Over real sockets, to a collector that decodes what OTLP sends."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.runs import plan, pool_of
from otlp import Collector, attributes, collector
from rl_conductor import Conductor, ConfigError, ScriptedModel
from rl_conductor.telemetry import called_by, exporting

OBSERVABILITY = Path(__file__).parents[3] / "docs" / "observability.md"
TWO = plan((0, "Draft it.", []), (1, "Say it.", ["all"]))
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collector() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
        yield made


def conductor() -> Conductor:
    return Conductor(ScriptedModel(TWO, name="planner"), pool_of(a="from a", b="from b"), name="house")


async def test_runs_reach_a_collector(collected: Collector) -> None:
    with exporting():
        trace = await conductor().run("Say something.")
    spans = {span.name: span for span in collected.spans()}
    assert set(spans) == {
        *("invoke_workflow house", "plan house", "chat planner"),
        *("invoke_agent a", "chat a", "invoke_agent b", "chat b"),
    }
    run = spans["invoke_workflow house"]
    assert run.parent_span_id == b""
    assert {span.trace_id for span in spans.values()} == {run.trace_id}
    assert spans["chat b"].parent_span_id == spans["invoke_agent b"].span_id
    assert spans["invoke_agent b"].parent_span_id == run.span_id
    assert [link.span_id for link in spans["invoke_agent b"].links] == [spans["invoke_agent a"].span_id]
    assert attributes(run)["rl_conductor.run.id"] == trace.id
    assert run.end_time_unix_nano - run.start_time_unix_nano == pytest.approx(trace.seconds * 1e9, abs=2e8)
    assert collected.resource()["service.name"] == "rl-conductor"
    assert {"gen_ai.client.token.usage", "gen_ai.client.operation.duration"} <= collected.metric_names()


async def test_nothing_is_told_once_the_block_is_left(collected: Collector) -> None:
    with exporting():
        pass
    await conductor().run("Say something.")
    assert collected.spans() == []


async def test_a_callers_trace_goes_on(collected: Collector) -> None:
    with exporting(), called_by({"traceparent": CALLER}):
        await conductor().run("Say something.")
    (run,) = [span for span in collected.spans() if span.name == "invoke_workflow house"]
    assert (run.trace_id.hex(), run.parent_span_id.hex()) == (CALLER[3:35], CALLER[36:52])


@pytest.mark.parametrize("header", ["", "nonsense", "00-" + "0" * 32 + "-b7ad6b7169203331-01", "ff" + CALLER[2:]])
async def test_a_traceparent_that_is_none_begins_a_trace_of_its_own(collected: Collector, header: str) -> None:
    with exporting(), called_by({"traceparent": header}):
        await conductor().run("Say something.")
    (run,) = [span for span in collected.spans() if span.name == "invoke_workflow house"]
    assert run.parent_span_id == b""


async def test_the_variables_of_one_signal_leave_the_other_alone(
    collected: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collected.url}/v1/traces")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=k")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "house")
    with exporting():
        await conductor().run("Say something.")
    assert len(collected.spans()) == 7
    assert collected.metrics == []
    assert collected.resource()["service.name"] == "house"
    assert collected.headers[0]["api-key"] == "k"


def documented(page: str, section: str) -> dict[str, str]:
    """Reads the variables that a section of the docs exports, with the keys of nobody."""
    text = page.split(f"\n## {section}\n")[1].split("\n## ", maxsplit=1)[0]
    values = dict(re.findall(r"^export (\w+)=\"?([^\"\n]*)", text, re.MULTILINE))
    return {name: re.sub(r"\$\w+", "c2VjcmV0", value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("section", "path", "headers"),
    [
        ("Phoenix", "/v1/traces", {}),
        (
            "Langfuse",
            "/api/public/otel/v1/traces",
            {"authorization": "Basic c2VjcmV0", "x-langfuse-ingestion-version": "4"},
        ),
        ("LangSmith", "/otel/v1/traces", {"x-api-key": "c2VjcmV0", "langsmith-project": "support"}),
    ],
)
async def test_the_variables_of_the_docs_send_spans_to_the_path_with_the_keys(
    collected: Collector, monkeypatch: pytest.MonkeyPatch, section: str, path: str, headers: dict[str, str]
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    for name, value in documented(OBSERVABILITY.read_text(), section).items():
        monkeypatch.setenv(name, re.sub(r"^https?://[^/]+", collected.url, value))
    with exporting():
        await conductor().run("Say something.")
    assert len(collected.spans()) == 7
    assert set(collected.paths) == {path}
    assert headers.items() <= collected.headers[0].items()


@pytest.mark.parametrize(("variable", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")])
async def test_what_is_switched_off_stays_silent(
    collected: Collector, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with exporting():
        await conductor().run("Say something.")
    assert collected.spans() == []


def test_an_exporter_that_is_not_installed_is_named(collected: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ConfigError, match="no exporter 'otlp_proto_grpc' for traces is installed"), exporting():
        pass


async def test_a_collector_that_is_away_costs_neither_the_answer_nor_much_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    began = time.monotonic()
    with caplog.at_level(logging.CRITICAL), exporting():
        assert (await conductor().run("Say something.")).text == "from b"
    assert time.monotonic() - began < 30


SET_UP = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(provider)

from rl_conductor import Conductor, ScriptedModel, WorkerPool
from rl_conductor.telemetry import exporting

plan = 'model_id = [0]\\nsubtasks = ["Say it."]\\naccess_list = [[]]'
with exporting():
    Conductor(ScriptedModel(plan), WorkerPool({"a": ScriptedModel("hi")})).run_sync("Say something.")
"""


def test_an_sdk_that_the_application_has_set_up_is_used(tmp_path: Path) -> None:
    script = tmp_path / "application.py"
    script.write_text(SET_UP)
    done = subprocess.run([sys.executable, "-W", "error", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"name": "invoke_workflow conductor"' in done.stdout
