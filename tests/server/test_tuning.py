"""The set-up of a server process before it listens."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator

import pytest

from rl_conductor_server.process import tuning
from rl_conductor_server.process.tuning import (
    GC_THRESHOLDS,
    allow_many_connections,
    collect_garbage_rarely,
    max_connections,
)
from rl_conductor_server.settings import IntakeEntry
from server.conftest import Serve


@pytest.fixture
def _collector_as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.usefixtures("_collector_as_before")
def test_a_server_collects_garbage_rarely_and_not_what_existed_before() -> None:
    existing: list[object] = [{}]
    collect_garbage_rarely()
    assert gc.get_threshold()[0] == GC_THRESHOLDS[0] > 700
    assert gc.get_freeze_count() > 1_000
    assert not any(each is existing for each in gc.get_objects())  # frozen objects are left out


@pytest.fixture
def open_files() -> Iterator[int]:
    """The hard limit of open files; the soft one is lower during the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_server_raises_its_limit_of_connections(open_files: int, caplog: pytest.LogCaptureFixture) -> None:
    allow_many_connections()
    raised, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert raised == (min(open_files, tuning.MAX_OPEN_FILES) if open_files >= 0 else tuning.MAX_OPEN_FILES)
    assert not caplog.records or raised < tuning.FEW_OPEN_FILES


@pytest.mark.usefixtures("open_files")
def test_a_server_warns_of_a_low_limit_of_connections(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tuning, "MAX_OPEN_FILES", 1_024)
    allow_many_connections()
    assert "at most 1024 files can be open" in caplog.text


@pytest.mark.usefixtures("open_files")
def test_connections_leave_some_of_the_open_files_to_others() -> None:
    assert max_connections(IntakeEntry()) == 768
    assert max_connections(IntakeEntry(connections=5_000)) == 5_000


async def test_idle_connections_outlive_those_of_load_balancers(serve: Serve) -> None:
    at = await serve()
    assert at.server.config.timeout_keep_alive > 60  # nginx and AWS close theirs then
