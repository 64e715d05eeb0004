"""`routes`: the trial of each route, read from a server's store, and its canary, set there."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal

import pytest
from typer.testing import Result

from rl_conductor_server.store import Pair, PairVerdict, Store
from server.cli.test_stored import keep, url

__all__ = ["url"]

Cli = Callable[..., Result]
VERDICTS: list[PairVerdict] = ["win", "win", "win", "tie", "loss"]


def pair(number: int, verdict: PairVerdict) -> Pair:
    return Pair(
        run=f"run-{number}",
        shadow=f"run-1{number}",
        route="assistant-2026-11-01",
        created=1_790_000_000.0 + number,
        answered="incumbent",
        verdict=verdict,
        reason="Because.",
        incumbent_cost=Decimal("0.01"),
        incumbent_seconds=1.0 + number / 10,
        conductor_cost=Decimal("0.02") if number else None,
        conductor_seconds=2.0,
    )


def test_json_for_machines_moves_no_cursor_by_what_a_store_says(cli: Cli, url: str) -> None:
    async def write(store: Store) -> None:
        await store.trials.configure("assist\x9b2Jant-2026-11-01", 5)

    keep(url, write)
    told = cli("routes", "--store", url, "--json").stdout
    assert "\x9b" not in told
    assert "assist\\u009b2Jant" in told


@pytest.fixture
def tried(url: str) -> str:
    """A store of a server with two routes, of which one was tried."""

    async def write(store: Store) -> None:
        await store.trials.configure("assistant-2026-11-01", 5)
        await store.trials.configure("other-2026-11-01", 0)
        for number, verdict in enumerate(VERDICTS):
            store.trials.add(pair(number, verdict))

    keep(url, write)
    return url


def test_a_trial_is_told_with_its_intervals(cli: Cli, tried: str) -> None:
    told = cli("routes", "assistant", "--store", tried)
    assert told.exit_code == 0
    lines = [" ".join(line.split()) for line in told.output.splitlines()]
    assert "assistant-2026-11-01" in lines
    assert "5 pairs compared for $0, 0 tokens" in lines
    assert "is better 60.0% 23.1% to 88.2%" in lines
    assert "is as good or better 80.0% 37.6% to 96.4%" in lines
    assert "is better, of 4 that are no tie 75.0% 30.1% to 95.4%" in lines
    assert "seconds, incumbent 1.2 s 1.2 s 1.4 s" in lines
    assert "seconds, conductor 2.0 s 2.0 s 2.0 s +0.80 s +0.66 s to +0.94 s" in lines
    assert "dollars, conductor $0.0200 $0.0200 $0.0200 +$0.0100 +$0.0100 to +$0.0100" in lines
    assert not [line for line in lines if line.startswith("other")]


def test_every_route_is_listed_and_as_json_in_full(cli: Cli, tried: str) -> None:
    assert "no pair compared yet; $0, 0 tokens spent" in cli("routes", "--store", tried).output
    listed = json.loads(cli("routes", "--store", tried, "--json").stdout)
    assert [(one["canary"]["route"], one["pairs"]) for one in listed] == [
        ("assistant-2026-11-01", 5),
        ("other-2026-11-01", 0),
    ]
    assert listed[1]["wins"] == {"value": 0.0, "low": 0.0, "high": 1.0, "n": 0}


def test_a_canary_is_set_by_hand(cli: Cli, tried: str) -> None:
    told = cli("routes", "assistant", "--canary", "20", "--store", tried)
    assert "canary at 20 % since" in told.output
    assert "set by hand" in told.output


def test_a_canary_of_many_or_of_none_is_not_set(cli: Cli, tried: str) -> None:
    many = cli("routes", "--canary", "20", "--store", tried)
    assert (many.exit_code, "assistant-2026-11-01, other-2026-11-01" in many.stderr) == (2, True)
    none = cli("routes", "nothing", "--canary", "20", "--store", tried)
    assert (none.exit_code, "no route 'nothing'" in none.stderr) == (2, True)
    assert cli("routes", "assistant", "--canary", "101", "--store", tried).exit_code == 2


def test_a_store_without_routes_says_so(cli: Cli, url: str) -> None:
    async def nothing(store: Store) -> None:
        await store.ping()

    keep(url, nothing)
    assert "has had a route" in cli("routes", "--store", url).stderr
