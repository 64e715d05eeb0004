from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from rl_conductor import Conductor, ConfigError
from rl_conductor._internal.sync import run_sync
from rl_conductor.config.learned_folder import read_conductor_file
from rl_conductor.pool.pool_file import PlannerEntry
from rl_conductor.types import Request
from rl_conductor_training.learn import LearnSettings, PlannerWeights
from rl_conductor_training.learn import learn as run_learn
from rl_conductor_training.learn.data import split_task
from rl_conductor_training.learn.folder import LearnedSystem, write_conductor_folder
from rl_conductor_training.learn.learners.base import Learner, SearchNeeds
from rl_conductor_training.learn.learners.fixed import BestWorker
from rl_conductor_training.learn.learners.instructions import EvolvedInstructions
from rl_conductor_training.learn.workspace import open_workspace
from rl_conductor_training.spending import CostEstimate
from training.learn.skills import build_planner, build_pool, build_task


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
async def test_without_torch_the_error_names_the_package_before_anything_is_spent(tmp_path: Path) -> None:
    pool = build_pool()
    settings = LearnSettings(learners=(*LearnSettings().learners, PlannerWeights))
    with pytest.raises(
        ConfigError, match=r"learning weights needs torch: pip install 'rl-conductor-training\[train\]'"
    ):
        await run_learn(build_task(), pool, planner=build_planner(), out=tmp_path, settings=settings)
    assert not (tmp_path / "experience.jsonl").exists() or not (tmp_path / "experience.jsonl").read_text()


class Training(EvolvedInstructions):
    training_seconds = 60.0


def test_the_needs_of_learners_that_search_are_added_up() -> None:
    needs = SearchNeeds.of([BestWorker(), Training(max_runs=0), EvolvedInstructions(max_runs=7)])
    assert needs == (7, 60.0)
    assert (needs.key, SearchNeeds(runs=7).key) == ("7 60", "7")


def test_the_training_is_part_of_the_estimate(tmp_path: Path) -> None:
    def estimate(name: str, *learners: Callable[[], Learner]) -> CostEstimate:
        estimates: list[CostEstimate] = []

        def stop(estimate: CostEstimate) -> None:
            estimates.append(estimate)
            raise RuntimeError("stopped")

        settings = LearnSettings(learners=(*LearnSettings().learners, *learners))
        with pytest.raises(RuntimeError, match="stopped"):
            run_sync(
                run_learn(
                    build_task(),
                    build_pool(),
                    planner=build_planner(),
                    out=tmp_path / name,
                    settings=settings,
                    on_estimate=stop,
                )
            )
        return estimates[0]

    plain, training = estimate("plain"), estimate("training", partial(Training, max_runs=0))
    assert training.minutes == pytest.approx(plain.minutes + 1)
    assert (training.calls, training.tokens) == (plain.calls, plain.tokens)


def test_a_trained_planner_is_stored_with_its_adapter_relative_to_the_folder(tmp_path: Path) -> None:
    conductor = Conductor(build_planner(), build_pool())
    entry = PlannerEntry(
        model="embedded:smollm2-135m",
        options={"lora": str(tmp_path / "learned" / "weights" / "adapter.gguf"), "threads": 1},
        form="lists",
        examples=0,
        steps=3,
        max_tokens=90,
        temperature=0.0,
        access="positional",
        instructions='Say "please".',
    )
    (tmp_path / "learned").mkdir()
    learned = LearnedSystem(method="weights", planner=conductor.planner, weights=entry)
    write_conductor_folder(tmp_path / "learned", learned, conductor.pool)
    (tmp_path / "learned").rename(tmp_path / "moved")
    stored = read_conductor_file(tmp_path / "moved").weights
    lora = str(tmp_path / "moved" / "weights" / "adapter.gguf")
    assert stored == entry.model_copy(update={"options": {"lora": lora, "threads": 1}})

    loaded = Conductor.load(tmp_path / "moved", pool=build_pool())
    planner = loaded.planner
    assert (planner.model.name, planner.examples, planner.sampling.max_tokens) == ("embedded:smollm2-135m", 0, 90)
    assert (loaded.limits.steps, loaded.config.access, planner.instructions) == (3, "positional", 'Say "please".')
    own = Conductor.load(tmp_path / "moved", pool=build_pool(), planner=build_planner())
    assert own.planner.model.name == "scripted:planner"


class Trained(BestWorker):
    """Stands for a finished training."""

    planner_entry = PlannerEntry(model="openai:trained", options={"base_url": "http://127.0.0.1:9"}, examples=0)

    def apply(self, conductor: Conductor) -> Conductor:
        return conductor


async def test_a_trained_planner_plans_only_requests_like_the_questions_of_its_task(tmp_path: Path) -> None:
    task = build_task()
    record = await run_learn(task, build_pool(), planner=build_planner(), out=tmp_path / "record")
    data = split_task(task, seed=0, opening_file=tmp_path / "heldout.json")
    learner = Trained()
    record = record.model_copy(update={"recommended": learner.name})
    open_workspace(build_pool(), build_planner(), tmp_path).write(record, [learner], data)
    planner = Conductor.load(tmp_path, pool=build_pool()).planner

    def model_for(question: str) -> str:
        return planner.for_request(Request.user(question)).model.name

    assert {model_for(sample.question) for sample in task.samples} == {"openai:trained"}
    assert model_for("Spell backwards the population of the city of Turin.") == "openai:trained"
    assert model_for("hi, can you translate this letter?") == "scripted:atlas"
