"""Tests on a real vLLM: collected only where it is installed. `tests/environments/vllm.sh` makes such a place.

The server starts with the session and warms up in its own process while the tests in this process run.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from .serving import Server, starting

collect_ignore_glob = ["test_*.py"] if find_spec("vllm") is None else []

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["VLLM_NO_USAGE_STATS"] = "1"
# Gibibytes. Without it a start on a CPU fails whenever less than 92 % of the memory is free.
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
# One process an engine instead of two: each takes 10 s to import everything.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
# Otherwise all engines are bound to the first core.
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import random_model  # noqa: PLC0415 - this file is read where torch is missing, too

    return random_model.make(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session", autouse=True)
def starting_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    import random_model  # noqa: PLC0415 - as above

    model = random_model.make(tmp_path_factory.mktemp("served"), context=32_768)
    with starting(model, name="tiny", log=tmp_path_factory.mktemp("server") / "log.txt") as server:
        yield server


@pytest.fixture(scope="session")
def server(starting_server: Server) -> Server:
    """Waits until the server is ready and yields it."""
    starting_server.await_ready()
    return starting_server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of the server's log beside a failure of a test that uses it."""
    report = yield
    server = item.funcargs.get("server") if isinstance(item, pytest.Function) else None
    if report.failed and isinstance(server, Server):
        report.sections.append(("vLLM server's log", server.last_words()))
    return report
