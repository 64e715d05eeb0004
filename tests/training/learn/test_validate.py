"""Learners are chosen on validation questions, and only those that may be recommended are proved."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from rl_conductor import Conductor
from rl_conductor.planning.fallback import single_step
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.learn import LearnRecord, LearnSettings, learn
from rl_conductor_training.learn.learners.base import Learner, Lessons
from rl_conductor_training.learn.learners.fixed import BestWorker, BestWorkflow
from rl_conductor_training.learn.learners.linear import LinearSelector
from training.learn.skills import build_planner, build_pool, build_task


class Constant(Learner):
    """A learner that always selects the same worker."""

    def __init__(self, name: str, worker: str) -> None:
        self.name = name
        self.workflow: Workflow = single_step(worker)
        self.fitted: list[int] = []

    def fit(self, lessons: Lessons) -> None:
        self.fitted.append(len(lessons.table.samples))

    def apply(self, conductor: Conductor) -> Conductor:
        return conductor.replaced(selector=WorkflowSelector(workflows=(self.workflow,)))


class Clairvoyant(LinearSelector):
    """A learner that is as good as the linear selector."""

    name = "clairvoyant"


def _same(learner: Learner) -> Learner:
    return learner


async def learn_with(tmp_path: Path, *others: Constant) -> LearnRecord:
    created: list[Callable[[], Learner]] = [BestWorker, BestWorkflow, LinearSelector, Clairvoyant]
    created += [partial(_same, other) for other in others]
    return await learn(
        build_task(),
        build_pool(),
        planner=build_planner(),
        out=tmp_path,
        settings=LearnSettings(max_steps=2, learners=tuple(created)),
    )


async def test_a_learner_below_the_baselines_is_not_proved(tmp_path: Path) -> None:
    bad = Constant("bad", "speller")
    record = await learn_with(tmp_path, bad)
    assert record.proof is not None
    results = {result.name: result for result in record.validation}
    assert (results["bad"].right, results["bad"].is_chosen) == (0, False)
    assert (results["clairvoyant"].right, results["clairvoyant"].is_chosen) == (1, True)
    names = [system.name for system in record.proof.systems]
    assert "clairvoyant" in names
    assert "bad" not in names
    assert names[:3] == ["best single", "best fixed", "linear"]


async def test_learners_are_chosen_by_what_they_learned_from_training_questions(tmp_path: Path) -> None:
    bad = Constant("bad", "speller")
    record = await learn_with(tmp_path, bad)
    assert bad.fitted == [record.questions["training"]]
    compared = {(row.system, row.baseline) for row in record.proof.comparisons} if record.proof else set()
    assert {("clairvoyant", "linear"), ("clairvoyant", "best fixed"), ("linear", "best fixed")} <= compared
    assert not any("oracle" in pair for pair in compared)
