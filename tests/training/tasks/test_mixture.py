from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rl_conductor import ConfigError, ScriptedModel
from rl_conductor.scoring import SHARES
from rl_conductor.types import Price
from rl_conductor_training.tasks import load_task


@pytest.fixture
def sums(tmp_path: Path) -> str:
    rows = [{"question": f"{number} + 1?", "answer": str(number + 1), "scoring": "numeric"} for number in range(5)]
    return write_rows(tmp_path / "sums.jsonl", rows)


@pytest.fixture
def towns(tmp_path: Path) -> str:
    rows = [{"question": "Capital of France?", "answer": "Paris"}, {"question": "Of Italy?", "answer": "Rome"}]
    return write_rows(tmp_path / "towns.jsonl", [{**row, "contrast": "capitals"} for row in rows])


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return f"jsonl:{path}"


def test_ids_and_contrast_sets_are_prefixed_with_the_part(towns: str) -> None:
    task = load_task("mixture", one={"name": towns}, other={"name": towns})
    assert [sample.id for sample in task.samples] == ["one/0", "other/0", "one/1", "other/1"]
    assert [sample.contrast for sample in task.samples] == ["one/capitals", "other/capitals"] * 2


async def test_each_sample_is_scored_by_its_own_task(sums: str, towns: str) -> None:
    task = load_task("mixture", sums={"name": sums}, towns={"name": towns})
    value = {sample.id: (await task.score(sample, "The answer is 1.0")).value for sample in task.samples[:2]}
    assert value == {"sums/0": 1, "towns/0": 0}
    assert (await task.score(task.samples[1], "paris")).right


@pytest.mark.parametrize(("prices", "expected"), [((1, 8), 8), ((None, 8), None), ((None, None), None)])
def test_the_price_of_the_judge_is_the_highest_one_if_all_are_known(
    prices: tuple[int | None, ...], expected: int | None, sums: str, tmp_path: Path
) -> None:
    judged = write_rows(tmp_path / "judged.jsonl", [{"question": "Why?", "answer": "because", "scoring": "judge"}])
    known = [None if price is None else Price(input=price, output=price) for price in prices]
    parts: dict[str, Any] = {
        f"part-{number}": {"name": judged, "options": {"judge": ScriptedModel("yes", price=price)}}
        for number, price in enumerate(known)
    }
    task = load_task("mixture", sums={"name": sums}, **parts)
    assert (task.judge_price and task.judge_price.output) == expected


def test_the_first_few_have_some_of_each_part_and_a_part_may_be_cut(sums: str, towns: str) -> None:
    task = load_task("mixture", sums={"name": sums, "limit": 3}, towns={"name": towns})
    assert [sample.id for sample in task.samples] == ["sums/0", "towns/0", "sums/1", "towns/1", "sums/2"]


def test_a_part_is_cut_after_it_is_shuffled(sums: str) -> None:
    cut = {
        task.samples[0].id
        for seed in range(9)
        if (task := load_task("mixture", a={"name": sums, "limit": 1, "shuffle": seed}))
    }
    assert len(cut) > 2


def test_a_part_may_be_a_split_of_its_task(tmp_path: Path) -> None:
    name = write_rows(tmp_path / "many.jsonl", [{"question": "?", "answer": str(number)} for number in range(50)])
    parts: dict[str, Any] = {split: {"name": name, "options": {"split": split}} for split in SHARES}
    assert len(load_task("mixture", **parts).samples) == 50


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({}, "task 'mixture' has no samples"),
        ({"a": "gsm8k"}, "part 'a' of the mixture: write a table or a dict of settings"),
        ({"a": {"name": "gsm8k", "most": 3}}, "part 'a' of the mixture: most: there is no such setting"),
        ({"a": {"name": "gsm9k"}}, "no task 'gsm9k'"),
        (
            {"a": {"name": "gsm8k", "options": {"limit": 3}}},
            "part 'a' of the mixture: limit is not an option of the task",
        ),
    ],
)
def test_a_mistake_is_told_by_the_part(parts: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_task("mixture", **parts)
