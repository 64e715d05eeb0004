"""Learned conductors as systems of a bench."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from rl_conductor import ConfigError, Planner, ScriptedModel, Step, WorkerPool, Workflow
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor.pool.worker import Worker
from rl_conductor_training.bench.report import build_report
from rl_conductor_training.bench.runner import Bench
from rl_conductor_training.learn.folder import LearnedSystem, write_conductor_folder
from rl_conductor_training.tasks.groups import hash_question
from training.bench import toys
from training.bench.conftest import ADD, BOTH, SPELL
from training.bench.toy_systems import lines

Make = Callable[..., Bench]


def learned(
    folder: Path,
    *,
    workers: tuple[str, ...] = ("adder", "speller"),
    fixed: bool = True,
    questions: Iterable[str] = ("Another question?",),
) -> str:
    """Writes the folder of a conductor, and returns the table of its system."""
    pool = WorkerPool([Worker.of(name, toys.toy(name)) for name in workers])
    steps = [
        Step(subtask=f"Do part {index}.", worker=name, access=frozenset(range(index)))
        for index, name in enumerate(workers)
    ]
    (folder / "learned").mkdir(exist_ok=True)
    learned = LearnedSystem(
        method="best fixed" if fixed else "examples",
        planner=Planner(model=ScriptedModel("", name="planner")),
        selector=WorkflowSelector(workflows=(Workflow(steps=tuple(steps)),)) if fixed else None,
        questions=set(map(hash_question, questions)),
    )
    write_conductor_folder(folder / "learned", learned, pool)
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


async def test_questions_that_a_system_learned_from_are_left_out_for_all_systems(bench: Make, tmp_path: Path) -> None:
    table = learned(tmp_path, questions=("add 1 1", " Spell 4")) + '[systems.single]\nkind = "best-single"\n'
    run = bench(table)
    (result,) = await run.run()
    asked = {row.key.sample for system in result.systems for row in system.results}
    assert (len(asked), result.left_out) == (10, 2)
    assert {"a11", "s4"}.isdisjoint(asked)
    report = build_report(run, [result], command="")
    assert "n = 10 in 3 groups, without 2 questions from which a system learned" in report.sections[0].title


async def test_a_bench_on_nothing_but_learned_questions_is_refused(bench: Make, tmp_path: Path) -> None:
    run = bench(learned(tmp_path, questions=[str(test["question"]) for test in (*ADD, *SPELL, *BOTH)]))
    with pytest.raises(ConfigError, match="'learned' learned from every question of 'test'; compare on others"):
        await run.run()


async def test_a_folder_that_does_not_say_what_it_learned_from_is_refused(bench: Make, tmp_path: Path) -> None:
    run = bench(learned(tmp_path, questions=()))
    with pytest.raises(ConfigError, match="does not say which questions it learned from: run the same rl-conductor"):
        await run.run()
