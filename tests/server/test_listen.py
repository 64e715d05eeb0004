"""How a server process is set up before it listens."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from rl_conductor_server.process.listen import GC_THRESHOLDS, collect_garbage_rarely
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


async def test_idle_connections_outlive_those_of_load_balancers(serve: Serve) -> None:
    at = await serve()
    assert at.server.config.timeout_keep_alive > 60  # nginx and AWS close theirs then
