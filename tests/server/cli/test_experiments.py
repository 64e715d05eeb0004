"""`experiments`: prints the results in a server's store and changes canaries there."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal

import pytest
from typer.testing import Result

from rl_conductor_server.store import Pair, PairVerdict, Store
from server.cli.stored_runs import keep

Cli = Callable[..., Result]
VERDICTS: list[PairVerdict] = ["win", "win", "win", "tie", "loss"]


def pair(number: int, verdict: PairVerdict) -> Pair:
    return Pair(
        run=f"run-{number}",
        shadow=f"run-1{number}",
        experiment="assistant-2026-11-01",
        created=1_790_000_000.0 + number,
        arm="baseline",
        verdict=verdict,
        reason="Because.",
        baseline_cost=Decimal("0.01"),
        baseline_seconds=1.0 + number / 10,
        conductor_cost=Decimal("0.02") if number else None,
        conductor_seconds=2.0,
    )


def test_json_output_escapes_control_characters_of_the_store(cli: Cli, url: str) -> None:
    async def write(store: Store) -> None:
        await store.experiments.configure_canary("assist\x9b2Jant-2026-11-01", 5)

    keep(url, write)
    result = cli("experiments", "--store", url, "--json").stdout
    assert "\x9b" not in result
    assert "assist\\u009b2Jant" in result


@pytest.fixture
def compared(url: str) -> str:
    """A store with two experiments, one of them with pairs."""

    async def write(store: Store) -> None:
        await store.experiments.configure_canary("assistant-2026-11-01", 5)
        await store.experiments.configure_canary("other-2026-11-01", 0)
        for number, verdict in enumerate(VERDICTS):
            store.experiments.add_pair(pair(number, verdict))

    keep(url, write)
    return url


def test_results_are_printed_with_their_intervals(cli: Cli, compared: str) -> None:
    result = cli("experiments", "assistant", "--store", compared)
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert "assistant-2026-11-01" in lines
    assert "5 pairs compared for $0, 0 tokens" in lines
    assert "is better 60.0% 23.1% to 88.2%" in lines
    assert "is as good or better 80.0% 37.6% to 96.4%" in lines
    assert "is better, of 4 without ties 75.0% 30.1% to 95.4%" in lines
    assert "seconds, baseline 1.2 s 1.2 s 1.4 s" in lines
    assert "seconds, conductor 2.0 s 2.0 s 2.0 s +0.80 s +0.66 s to +0.94 s" in lines
    assert "dollars, conductor $0.0200 $0.0200 $0.0200 +$0.0100 +$0.0100 to +$0.0100" in lines
    assert not [line for line in lines if line.startswith("other")]


def test_all_routes_are_listed_and_json_has_all_fields(cli: Cli, compared: str) -> None:
    assert "no pairs compared yet; $0, 0 tokens spent" in cli("experiments", "--store", compared).output
    results = json.loads(cli("experiments", "--store", compared, "--json").stdout)
    assert [(result["canary"]["experiment"], result["pairs"]) for result in results] == [
        ("assistant-2026-11-01", 5),
        ("other-2026-11-01", 0),
    ]
    assert results[1]["wins"] == {"value": 0.0, "low": 0.0, "high": 1.0, "n": 0}


def test_the_canary_option_changes_the_percentage(cli: Cli, compared: str) -> None:
    result = cli("experiments", "assistant", "--canary", "20", "--store", compared)
    assert "canary at 20 % since" in result.output
    assert "set on the command line" in result.output


def test_the_canary_option_needs_exactly_one_route(cli: Cli, compared: str) -> None:
    many = cli("experiments", "--canary", "20", "--store", compared)
    assert (many.exit_code, "assistant-2026-11-01, other-2026-11-01" in many.stderr) == (2, True)
    none = cli("experiments", "nothing", "--canary", "20", "--store", compared)
    assert (none.exit_code, "no experiment 'nothing'" in none.stderr) == (2, True)
    assert cli("experiments", "assistant", "--canary", "101", "--store", compared).exit_code == 2


def test_a_store_without_routes_is_reported(cli: Cli, url: str) -> None:
    async def nothing(store: Store) -> None:
        await store.ping()

    keep(url, nothing)
    assert "no experiments in this store" in cli("experiments", "--store", url).stderr
