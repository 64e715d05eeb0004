"""Learned conductors as systems of a bench."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rl_conductor import ConfigError, Planner, ScriptedModel, Step, WorkerPool, Workflow
from rl_conductor.config.learned_folder import write_conductor_folder
from rl_conductor.planning.selector import WorkflowSelector
from rl_conductor.pool.worker import Worker
from rl_conductor_training.bench.runner import Bench
from training.bench import toys
from training.bench.toy_systems import lines

Make = Callable[..., Bench]


def learned(folder: Path, *, workers: tuple[str, ...] = ("adder", "speller"), fixed: bool = True) -> str:
    """Writes the folder of a conductor, and returns the table of its system."""
    pool = WorkerPool([Worker.of(name, toys.toy(name)) for name in workers])
    steps = [
        Step(subtask=f"Do part {index}.", worker=name, access=frozenset(range(index)))
        for index, name in enumerate(workers)
    ]
    (folder / "learned").mkdir(exist_ok=True)
    write_conductor_folder(
        folder / "learned",
        method="best fixed" if fixed else "examples",
        pool=pool,
        planner=Planner(model=ScriptedModel("", name="planner")),
        selector=WorkflowSelector(workflows=(Workflow(steps=tuple(steps)),)) if fixed else None,
    )
    toys.MADE.clear()
    return f'[systems.learned]\nkind = "learned"\nfolder = "{folder / "learned"}"\n'


async def test_a_learned_workflow_runs_over_the_pool_of_the_bench(bench: Make, tmp_path: Path) -> None:
    row = (await lines(bench(learned(tmp_path))))["learned"]
    assert (row.steps, row.usage.calls) == (2, 2 * 12)
    assert row.accuracy_by_depth[2].value == 1


async def test_a_learned_planner_plans_with_the_model_of_the_bench(bench: Make, tmp_path: Path) -> None:
    planner = 'planner = { model = "toy:planner", form = "lists" }\n'
    row = (await lines(bench(learned(tmp_path, fixed=False) + planner)))["learned"]
    assert (row.accuracy.value, toys.calls("planner")) == (1, 12)


async def test_another_folder_is_another_system(bench: Make, tmp_path: Path) -> None:
    await lines(bench(learned(tmp_path)))
    row = (await lines(bench(learned(tmp_path, workers=("adder",)))))["learned"]
    assert row.steps == 1  # its results are not those of the earlier folder


async def test_a_worker_that_the_pool_lacks_is_named(bench: Make, tmp_path: Path) -> None:
    table = learned(tmp_path, workers=("judge",))
    with pytest.raises(ConfigError, match="judge"):
        await lines(bench(table))
