"""Engines that models share."""

from __future__ import annotations

from rl_conductor.models.in_process.sharing import SharedEngines


class Engine:
    """An engine without weights."""

    def __init__(self, setup: str) -> None:
        self.setup = setup
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_an_engine_is_closed_after_the_last_model_and_then_created_anew() -> None:
    engines = SharedEngines(Engine, key=str.lower)
    first, same, other = engines.lease("a"), engines.lease("A"), engines.lease("b")
    assert first is same
    assert other is not first
    engines.release(first)
    assert first.closed == 0
    engines.release(first)
    assert (first.closed, other.closed) == (1, 0)
    assert engines.lease("a") is not first


def test_an_engine_that_was_closed_with_all_others_is_not_closed_again() -> None:
    engines = SharedEngines(Engine, key=str.lower)
    leased = engines.lease("a")
    engines.close_all()
    engines.release(leased)
    assert leased.closed == 1
