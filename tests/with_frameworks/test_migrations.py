"""The programs of `docs/migrating.md` with their real frameworks; those after the move talk to `rl-conductor serve`."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from migrations import PROGRAMS, REPLY, ROOT, ScriptedVendor, check_row, measure

SERVER = ROOT / ".venv" / "bin" / "rl-conductor"
"""From the main environment: the frameworks want other versions of its dependencies."""
TEAM = ("researcher", "analyst", "writer")
SOURCES = "['Heron: 12.4 kg, 1,890 euros. Kestrel: 9.8 kg, 2,350 euros.', 'Bicycles may be returned within 30 days"
QUIET = {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false", "OTEL_SDK_DISABLED": "true"}


@pytest.fixture(scope="module")
def vendor() -> Iterator[ScriptedVendor]:
    with ScriptedVendor.running() as service:
        yield service


@pytest.fixture(scope="module")
def server(vendor: ScriptedVendor, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server with the settings of the page."""
    folder = tmp_path_factory.mktemp("server")
    settings = folder / "server.toml"
    store = f'[store]\nurl = "sqlite:///{folder / "runs.db"}"\n'
    settings.write_text("port = 0\n" + (PROGRAMS / "server.toml").read_text() + store)
    environment = {**os.environ, **environment_of(f"{vendor.url}/v1"), "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    command = [str(SERVER), "serve", "--config", str(settings)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield read_url(process)
        finally:
            process.terminate()


def read_url(process: subprocess.Popen[str]) -> str:
    """Reads the URL that the server prints when it is ready."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return f"{found[0]}/v1"
    raise AssertionError(f"the server ended with status {process.wait()}")


def environment_of(url: str) -> dict[str, str]:
    """Environment variables that lead every framework to `url`."""
    return {"OPENAI_BASE_URL": url, "OPENAI_API_BASE": url, "OPENAI_API_KEY": "sk-loopback", **QUIET}


@contextmanager
def pointed_at(url: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment_of(url).items():
            patch.setenv(name, value)
        yield


@pytest.mark.parametrize(
    ("row", "before", "after"),
    [
        ("CrewAI, sequential", "crew_sequential_before", "crew_after"),
        ("CrewAI, hierarchical", "crew_hierarchical_before", "crew_after"),
        ("Agent Framework", "group_chat_before", "group_chat_after"),
        ("AutoGen", "selector_before", "selector_after"),
        ("OpenAI Agents SDK", "handoffs_before", "handoffs_after"),
    ],
)
def test_a_program_moves_to_the_server(vendor: ScriptedVendor, server: str, row: str, before: str, after: str) -> None:
    with pointed_at(f"{vendor.url}/v1"):
        first = measure(vendor, before, TEAM)
    with pointed_at(server):
        second = measure(vendor, after, TEAM)
    assert (first.output.strip(), second.output.strip()) == (REPLY, REPLY)
    check_row(row, first, second)


def test_a_router_query_engine_becomes_a_conductor(vendor: ScriptedVendor) -> None:
    with pointed_at(f"{vendor.url}/v1"):
        before = measure(vendor, "router_engine_before", ("data", "rules", "writer"))
        after = measure(vendor, "router_engine_after", ("data", "rules", "writer"))
    for measured in (before, after):
        assert measured.output.startswith(f"{REPLY}\n{SOURCES}")
    check_row("LlamaIndex", before, after)
