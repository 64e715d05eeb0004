from __future__ import annotations

import time

import pytest

from rl_conductor_server.store.clock import MAX_STEP_BACK, DatabaseClock


class Monotonic:
    """The clock of `time.monotonic`, moved by hand."""

    seconds = 500.0


@pytest.fixture
def monotonic(monkeypatch: pytest.MonkeyPatch) -> Monotonic:
    clock = Monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: clock.seconds)
    return clock


def test_times_go_on_from_the_reading(monotonic: Monotonic) -> None:
    clock = DatabaseClock(1_000.0)
    assert clock.now() == 1_000.0
    monotonic.seconds += 7
    clock.set(2_000.0, read_at=monotonic.seconds - 3)
    assert clock.now() == 2_003.0


@pytest.mark.usefixtures("monotonic")
def test_times_differ_although_the_clock_stands_still() -> None:
    clock = DatabaseClock(2e9)
    times = [clock.now() for _ in range(100)]
    assert sorted(set(times)) == times


def test_a_reading_that_is_a_little_earlier_does_not_set_the_time_back(monotonic: Monotonic) -> None:
    clock = DatabaseClock(1_000.0)
    latest = clock.now()
    clock.set(999.0, read_at=monotonic.seconds)
    assert latest < clock.now() < latest + 0.001
    monotonic.seconds += 5
    assert clock.now() == 1_004.0


def test_a_correction_of_the_clock_is_followed(monotonic: Monotonic) -> None:
    clock = DatabaseClock(1_000.0)
    clock.now()
    clock.set(999.0 - MAX_STEP_BACK, read_at=monotonic.seconds)
    assert clock.now() == 999.0 - MAX_STEP_BACK
