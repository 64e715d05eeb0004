"""Second rounds in training: the rollouts of each row, learning from them, and resuming."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

import random_model
import toy_training
from rl_conductor import ScriptedModel, WorkerPool
from rl_conductor._internal.jsonl import read_lines
from rl_conductor.scoring import Sample
from rl_conductor_training.tasks.scorers.text import exact
from rl_conductor_training.train.config import PlanSettings, TrainConfig
from rl_conductor_training.train.policy.grammar_constraint import GrammarConstraint
from rl_conductor_training.train.policy.model_loading import LoadedModel, load_model
from rl_conductor_training.train.progress import TrainProgress
from rl_conductor_training.train.prompt_instances import PromptInstance
from rl_conductor_training.train.rewards.reward_fn import RewardFunction
from rl_conductor_training.train.rollouts.rollout_fn import Rollout, RolloutFunction, RolloutRequest
from rl_conductor_training.train.rollouts.scoring import LoggedPlan, RolloutScorer
from rl_conductor_training.train.train import train
from rl_conductor_training.train.trainers.callbacks import StepMetrics

pytestmark = pytest.mark.timeout(600)

FIRST = 'model_id = [{}]\nsubtasks = ["Answer."]\naccess_list = [[]]'
ENTRY = PlanSettings(examples=0)
ACCEPT = "model_id = []\nsubtasks = []\naccess_list = []"
ROWS = [RolloutRequest(0, 1)] * 2 + [RolloutRequest(1, 1)] * 4 + [RolloutRequest(1, 2)] * 4


# ------------------------------------------------------------------------------------ rows of a batch


class Engine:
    """A stand-in for vLLM that returns scripted plans and records its calls."""

    def __init__(self, loaded: LoadedModel, *rounds: list[str]) -> None:
        self._loaded = loaded
        self._rounds = list(rounds)
        self.generation_kwargs: dict[str, Any] = {}
        self.asked: list[tuple[list[list[int]], int, Any]] = []

    def generate(self, *, prompts: list[list[int]], num_generations: int, **_: Any) -> tuple[Any, ...]:
        self.asked.append((prompts, num_generations, self.generation_kwargs.get("structured_outputs")))
        texts = self._rounds.pop(0)
        plans = [[*self._loaded.tokenizer(text)["input_ids"], self._loaded.end_tokens[0]] for text in texts]
        return prompts, plans, [[[-0.5]] * len(plan) for plan in plans], None


class Batch(NamedTuple):
    columns: dict[str, Any]
    rollout_function: RolloutFunction
    engine: Engine
    workers: dict[str, ScriptedModel]

    @property
    def rollouts(self) -> list[Rollout]:
        rows: list[Rollout] = self.columns["rollouts"]
        return rows


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(str(random_model.make(tmp_path_factory.mktemp("tiny"))), dtype="float32")


@pytest.fixture(scope="module")
def grammars(loaded: LoadedModel) -> list[GrammarConstraint]:
    def only(text: str) -> GrammarConstraint:
        vocab_size = loaded.model.config.vocab_size
        return GrammarConstraint(
            loaded.tokenizer, vocab_size=vocab_size, end_tokens=loaded.end_tokens, gbnf=f'root ::= "{text}"'
        )

    return [only("first"), only("second")]


def run_batch(loaded: LoadedModel, grammars: list[GrammarConstraint], requests: list[RolloutRequest]) -> Batch:
    """Two plans for a question without a second round; for one with, if it is asked for, a right, no and two wrong."""
    models = {"good": ScriptedModel(["Paris"] * 4), "bad": ScriptedModel(["Rome"] * 4)}
    instances = [
        PromptInstance(
            Sample(id=f"{number}", question="Where?", answer="Paris"), WorkerPool(models), ENTRY, index=number
        )
        for number in range(2)
    ]
    good, bad = FIRST.format(0), FIRST.format(1)
    first = [good, bad, good, "no plan", bad, bad]
    engine = Engine(loaded, first[: sum(row.round == 1 for row in requests)], [ACCEPT, good, good, ACCEPT])
    rollout_function = RolloutFunction(
        instances, RolloutScorer(exact), loaded.plan_tokenizer, grammars=grammars, progress=TrainProgress()
    )
    trainer = SimpleNamespace(
        rollout_requests=requests,
        use_vllm=True,
        num_generations=2,
        vllm_generation=engine,
        state=SimpleNamespace(global_step=0),
        args=SimpleNamespace(report_to=[]),
        accelerator=SimpleNamespace(is_main_process=True),
    )
    return Batch(rollout_function([], trainer), rollout_function, engine, models)


@pytest.fixture
def batch(loaded: LoadedModel, grammars: list[GrammarConstraint]) -> Batch:
    return run_batch(loaded, grammars, ROWS)


def test_without_a_second_round_a_batch_is_sampled_once_and_unmasked(
    loaded: LoadedModel, grammars: list[GrammarConstraint]
) -> None:
    batch = run_batch(loaded, grammars[:1], ROWS[:2])
    assert set(batch.columns) == {"prompt_ids", "completion_ids", "logprobs", "rollouts"}
    assert len(batch.engine.asked) == 1
    assert [row.previous for row in batch.rollouts] == [None, None]


def test_each_row_of_a_second_round_revises_the_plan_at_its_position(batch: Batch) -> None:
    scores = [row.scored and (row.scored.valid, row.scored.score) for row in batch.rollouts]
    first, second = scores[:6], scores[6:]
    assert first == [(True, 1.0), (True, 0.0), (True, 1.0), (False, None), (True, 0.0), (True, 0.0)]
    assert second == [(True, 1.0), None, (True, 1.0), (True, 0.0)]
    assert [row.previous for row in batch.rollouts[6:]] == [row.scored for row in batch.rollouts[2:6]]


def test_the_prompt_of_a_second_round_adds_the_plan_and_the_answer(batch: Batch, loaded: LoadedModel) -> None:
    texts = [loaded.tokenizer.decode(prompt) for prompt in batch.columns["prompt_ids"]]
    for first, second, reply in ((2, 6, "Paris"), (4, 8, "Rome")):
        assert texts[second].startswith(texts[first])
        judged = batch.rollouts[second].previous
        assert judged is not None
        assert judged.text in texts[second]
        assert f"\n{reply}\n</reply" in texts[second]


def test_every_plan_runs_once_and_an_accepting_one_not_at_all(batch: Batch) -> None:
    assert {name: len(model.requests) for name, model in batch.workers.items()} == {"good": 3, "bad": 3}


def test_rows_without_a_first_answer_are_masked(batch: Batch) -> None:
    counted = [set(mask) for mask in batch.columns["env_mask"]]
    assert counted == [{1}] * 7 + [{0}] + [{1}] * 2
    for column in ("prompt_ids", "completion_ids", "logprobs"):
        assert batch.columns[column][7] == batch.columns[column][3]


def test_each_round_is_sampled_and_scored_under_its_own_grammar(
    batch: Batch, grammars: list[GrammarConstraint]
) -> None:
    assert [outputs for _, _, outputs in batch.engine.asked] == [
        {"grammar": f'root ::= "{name}"'} for name in ("first", "second")
    ]
    prompts = batch.columns["prompt_ids"]
    assert [batch.rollout_function.grammar(prompt) for prompt in prompts] == [grammars[0]] * 6 + [
        grammars[1],
        grammars[0],
        grammars[1],
        grammars[1],
    ]


def test_vllm_samples_every_row_of_a_second_round_separately(batch: Batch) -> None:
    assert [(len(prompts), alike) for prompts, alike, _ in batch.engine.asked] == [(6, 2), (4, 1)]


def test_the_common_prefix_of_a_prompt_group_is_returned(batch: Batch) -> None:
    prompts = [tuple(prompt) for prompt in batch.columns["prompt_ids"]]
    groups = [batch.rollout_function.prompt_group(prompt) for prompt in prompts]
    assert groups == [(False, prompt) for prompt in prompts[:6]] + [
        (True, prompts[2]),
        (False, prompts[3]),
        (True, prompts[4]),
        (True, prompts[5]),
    ]


def test_rows_are_rewarded_and_logged_by_round(batch: Batch) -> None:
    plans_by_step: dict[int, list[LoggedPlan]] = {}
    metrics: dict[str, float] = {}
    settings = {"model": "m", "task": {"name": "composite:train"}, "pool": {"small": {}}, "recursion": {}}
    instances = [next(row.instance for row in batch.rollouts if row.instance.index == number) for number in range(2)]
    reward = RewardFunction(TrainConfig.model_validate(settings), instances, {}, log_plans=plans_by_step.__setitem__)  # type: ignore[arg-type]
    state = SimpleNamespace(global_step=4, is_world_process_zero=True)
    assert reward(rollouts=batch.rollouts, trainer_state=state, log_metric=metrics.__setitem__) == [
        *(1.0, 0.5),
        *(1.0, 0.0, 0.625, 0.5),
        *(1.0, None, 1.0, 0.5),
    ]
    assert [(plan.round, plan.before) for plan in plans_by_step[5]] == [(1, None)] * 6 + [(2, 1.0), (2, 0.0), (2, 0.0)]
    assert (metrics["plans/kept"], metrics["plans/repaired"], metrics["plans/spoiled"]) == (2 / 3, 1 / 2, 0.0)
    assert (metrics["plans/calls"], metrics["plans/valid"]) == (6, 5 / 6)


# ------------------------------------------------------------------------------------ a whole run


class Trained(NamedTuple):
    home: Path
    steps: dict[int, StepMetrics]
    pool: WorkerPool


def trained(home: Path, *, last_step: int | None = None) -> Trained:
    steps: dict[int, StepMetrics] = {}
    config, pool = toy_training.config(home, **toy_training.RECURSION), toy_training.pool()
    train(config, home / "run", pool, last_step=last_step, on_step=steps.__setitem__)
    return Trained(home, steps, pool)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(tmp_path_factory.mktemp("whole"))


def mean(finished: Trained, name: str, numbers: range) -> float:
    values = [finished.steps[number][name] for number in numbers if name in finished.steps[number]]
    return sum(values) / len(values)


def test_grpo_learns_to_keep_right_answers(finished: Trained) -> None:
    assert mean(finished, "spoiled", range(1, 4)) > 0.4
    assert mean(finished, "spoiled", range(9, 13)) < 0.25
    assert mean(finished, "kept", range(9, 13)) > mean(finished, "kept", range(1, 4))


def test_a_step_has_the_plans_of_both_rounds_each_run_once(finished: Trained) -> None:
    files = sorted((finished.home / "run" / "plans").iterdir())
    plans = [plan for file in files for plan in read_lines(file, LoggedPlan)]
    assert sum(plan.round == 1 for plan in plans) == 12 * 16
    models = [worker.model for worker in finished.pool.values()]
    calls = sum(len(model.requests) for model in models if isinstance(model, ScriptedModel))
    assert calls == len([plan for plan in plans if plan.workflow])
    assert calls == sum(step["calls"] for step in finished.steps.values())
    assert all(plan.score == plan.before for plan in plans if plan.round == 2 and not plan.workflow and plan.reward)


def test_a_killed_run_resumes_at_the_same_next_step(finished: Trained, tmp_path: Path) -> None:
    home = tmp_path / "killed"
    shutil.copytree(finished.home, home, ignore=shutil.ignore_patterns("run"))
    shutil.copytree(finished.home / "run" / "warm_start", home / "run" / "warm_start")
    toy_training.kill(home, after=3, **toy_training.RECURSION)
    again = trained(home, last_step=5)
    assert list(again.steps) == [3, 4, 5]  # the newest checkpoint is of step 2
    for number, step in again.steps.items():
        expected = finished.steps[number]
        assert {name: step[name] for name in step if name != "step_time"} == {
            name: expected[name] for name in expected if name != "step_time"
        }
