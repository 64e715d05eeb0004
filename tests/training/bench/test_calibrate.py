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
from training.bench.toy_systems import PLANNED

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


def test_cards_get_accuracy_and_latency_and_the_rest_of_the_file_is_unchanged(pool: Path) -> None:
    result = calibrate(pool)
    assert result.exit_code == 0, result.output
    cards = {card.name: card for card in WorkerPool.from_toml(pool).cards}
    assert cards["adder"].accuracy == {"add": 1.0, "spell": 0.0}
    assert cards["speller"].accuracy == {"add": 0.0, "spell": 1.0}
    assert cards["adder"].latency is not None
    text = pool.read_text()
    assert text.startswith("# My workers.\n")
    assert 'model = "toy:adder"  # sums' in text
    assert "add 1.00 ± 0.00 (n = 12), spell 0.00 ± 0.00 (n = 8)" in text
    assert "1.00 ± 0.00" in result.stdout


def test_a_worker_that_never_answered_keeps_its_card_and_the_command_says_why(pool: Path) -> None:
    pool.write_text(POOL + '[workers.down]\nmodel = "toy:failing"\naccuracy = { add = 0.7 }\n')
    result = calibrate(pool)
    assert result.exit_code == 0, result.output
    cards = {card.name: card for card in WorkerPool.from_toml(pool).cards}
    assert (cards["down"].accuracy, cards["down"].latency) == ({"add": 0.7}, None)
    assert cards["adder"].accuracy == {"add": 1.0, "spell": 0.0}
    assert "down failed on all of 20 questions, so its card stays as it is: step 1: down: the server" in result.stderr


def test_a_worker_that_failed_on_some_questions_is_named(pool: Path) -> None:
    pool.write_text(POOL + '[workers.unsteady]\nmodel = "toy:unsteady"\n')
    result = calibrate(pool)
    assert "unsteady failed on 12 of 20 questions, which count as wrong, such as: step 1: unsteady:" in result.stderr


def test_a_worker_that_is_only_the_name_of_a_model_gets_a_table(pool: Path) -> None:
    pool.write_text('[workers]\nadder = "toy:adder"\nspeller = "toy:speller"\n')
    assert calibrate(pool).exit_code == 0
    cards = {card.name: card for card in WorkerPool.from_toml(pool).cards}
    assert cards["adder"].accuracy == {"add": 1.0, "spell": 0.0}


def test_writing_to_another_file_leaves_the_first_unchanged(pool: Path) -> None:
    assert calibrate(pool, "--out", str(pool.parent / "measured.toml"), "--limit", "4").exit_code == 0
    assert pool.read_text() == POOL
    assert tomllib.loads((pool.parent / "measured.toml").read_text())["workers"]["adder"]["accuracy"] == {"add": 1.0}


def test_a_linked_pool_file_stays_a_link_and_keeps_its_mode(pool: Path) -> None:
    kept = pool.rename(pool.parent / "kept.toml")
    kept.chmod(0o640)
    pool.symlink_to("kept.toml")
    assert calibrate(pool, "--limit", "4").exit_code == 0
    assert pool.is_symlink()
    assert tomllib.loads(kept.read_text())["workers"]["adder"]["accuracy"] == {"add": 1.0}
    assert kept.stat().st_mode & 0o777 == 0o640


def test_a_second_calibration_makes_no_calls(pool: Path) -> None:
    calibrate(pool)
    calls_before = toys.calls()
    assert calls_before == 2 * 20
    assert {"bench-replies.sqlite", "calibration.jsonl"} <= {file.name for file in (pool.parent / "cache").iterdir()}
    calibrate(pool)
    assert toys.calls() == calls_before


def test_an_unwritable_file_is_named_and_leaves_nothing_behind(pool: Path) -> None:
    result = calibrate(pool, "--out", str(pool.parent / "nowhere" / "pool.toml"))
    assert result.exit_code == 2
    assert "can't write" in result.stderr
    assert not list(pool.parent.glob(".*.toml*"))


async def test_a_bench_may_put_measured_accuracy_into_prompts(bench: Callable[..., Bench]) -> None:
    await bench(PLANNED + '[pools.toys]\ncards = "measured"\n').run()
    prompt = toys.MADE["planner"][0].requests[0].messages[0].text
    assert "0 adder: adds; add 100, spell 0" in prompt
    assert "1 speller: spells; spell 100, add 0" in prompt
