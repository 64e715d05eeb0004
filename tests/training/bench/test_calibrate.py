from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rl_conductor import WorkerPool
from rl_conductor.cli.main import app
from rl_conductor_training.bench.runner import Bench
from training.bench import toys
from training.bench.test_runner import PLANNED

POOL = """\
# My workers.
[workers.adder]
model = "toy:adder"  # sums
sampling = { temperature = 0 }

[workers.speller]
model = "toy:speller"
accuracy = { add = 0.9 }
"""


@pytest.fixture
def pool(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pool file, and a cache folder of the test's own."""
    monkeypatch.setenv("RL_CONDUCTOR_CACHE", str(folder / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    file = folder / "pool.toml"
    file.write_text(POOL)
    return file


def calibrate(pool: Path, *more: str) -> Result:
    return CliRunner().invoke(app, ["calibrate", str(pool), "--task", f"jsonl:{pool.parent / 'learn.jsonl'}", *more])


def test_cards_get_accuracy_by_domain_and_latency_and_the_file_keeps_what_else_it_says(pool: Path) -> None:
    said = calibrate(pool)
    assert said.exit_code == 0, said.output
    cards = {card.name: card for card in WorkerPool.from_toml(pool).cards}
    assert cards["adder"].accuracy == {"add": 1.0, "spell": 0.0}
    assert cards["speller"].accuracy == {"add": 0.0, "spell": 1.0}
    assert cards["adder"].latency is not None
    text = pool.read_text()
    assert text.startswith("# My workers.\n")
    assert 'model = "toy:adder"  # sums' in text
    assert "add 1.00 ± 0.00 (n = 12), spell 0.00 ± 0.00 (n = 8)" in text
    assert "1.00 ± 0.00" in said.stdout


def test_another_file_leaves_the_first_as_it_was(pool: Path) -> None:
    assert calibrate(pool, "--out", str(pool.parent / "measured.toml"), "--limit", "4").exit_code == 0
    assert pool.read_text() == POOL
    assert tomllib.loads((pool.parent / "measured.toml").read_text())["workers"]["adder"]["accuracy"] == {"add": 1.0}


def test_a_second_time_nothing_is_asked_again(pool: Path) -> None:
    calibrate(pool)
    asked = toys.calls()
    assert asked == 2 * 20
    assert {"bench-replies.sqlite", "calibration.jsonl"} <= {file.name for file in (pool.parent / "cache").iterdir()}
    calibrate(pool)
    assert toys.calls() == asked


def test_a_file_that_cannot_be_written_is_named_and_leaves_nothing_behind(pool: Path) -> None:
    said = calibrate(pool, "--out", str(pool.parent / "nowhere" / "pool.toml"))
    assert said.exit_code == 2
    assert "can't write" in said.stderr
    assert not list(pool.parent.glob(".*.toml*"))


async def test_a_bench_may_tell_planners_what_was_measured(bench: Callable[..., Bench]) -> None:
    await bench(PLANNED + '[pools.toys]\ncards = "measured"\n').run()
    told = toys.MADE["planner"][0].requests[0].messages[0].text
    assert 'Model 0 "adder": adds; right on add 100%, spell 0%' in told
    assert 'Model 1 "speller": spells; right on add 0%, spell 100%' in told
