"""A second round while training: what is drawn and run for which row, what is learnt of it, and that it can go on."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

import random_model
import toy_training
from rl_conductor import ScriptedModel, WorkerPool
from rl_conductor.tasks.base import Sample
from rl_conductor.tasks.scorers import exact
from rl_conductor.train.config import PlanEntry, TrainConfig
from rl_conductor.train.exercises import Exercise
from rl_conductor.train.held import Held
from rl_conductor.train.lines import read_lines
from rl_conductor.train.loading import Loaded, load
from rl_conductor.train.outcomes import Drawn, Examiner
from rl_conductor.train.rewarding import Reward
from rl_conductor.train.rollouts import Asked, Played, Rollouts
from rl_conductor.train.run import Step, train

pytestmark = pytest.mark.timeout(600)

FIRST = 'model_id = [{}]\nsubtasks = ["Answer."]\naccess_list = [[]]'
ENTRY = PlanEntry(examples=0)
ACCEPT = "model_id = []\nsubtasks = []\naccess_list = []"
ROWS = [Asked(0, 1)] * 2 + [Asked(1, 1)] * 4 + [Asked(1, 2)] * 4


# ------------------------------------------------------------------------------------ rows of a batch


class Engine:
    """In vLLM's place: writes what it is told to, and keeps how it was asked."""

    def __init__(self, loaded: Loaded, *rounds: list[str]) -> None:
        self._loaded = loaded
        self._rounds = list(rounds)
        self.generation_kwargs: dict[str, Any] = {}
        self.asked: list[tuple[list[list[int]], int, Any]] = []

    def generate(self, *, prompts: list[list[int]], num_generations: int, **_: Any) -> tuple[Any, ...]:
        self.asked.append((prompts, num_generations, self.generation_kwargs.get("structured_outputs")))
        texts = self._rounds.pop(0)
        plans = [[*self._loaded.tokenizer(text)["input_ids"], self._loaded.ends[0]] for text in texts]
        return prompts, plans, [[[-0.5]] * len(plan) for plan in plans], None


class Batch(NamedTuple):
    columns: dict[str, Any]
    rollouts: Rollouts
    engine: Engine
    workers: dict[str, ScriptedModel]

    @property
    def played(self) -> list[Played]:
        rows: list[Played] = self.columns["played"]
        return rows


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(str(random_model.make(tmp_path_factory.mktemp("tiny"))), dtype="float32")


@pytest.fixture(scope="module")
def held(loaded: Loaded) -> list[Held]:
    def only(text: str) -> Held:
        vocab_size = loaded.model.config.vocab_size
        return Held(loaded.tokenizer, vocab_size=vocab_size, ends=loaded.ends, gbnf=f'root ::= "{text}"')

    return [only("first"), only("second")]


def played(loaded: Loaded, held: list[Held], asked: list[Asked]) -> Batch:
    """Two plans for a question without a second round; for one with, if it is asked for, a right, no and two wrong."""
    models = {"good": ScriptedModel(["Paris"] * 4), "bad": ScriptedModel(["Rome"] * 4)}
    exercises = [
        Exercise(Sample(id=f"{number}", question="Where?", answer="Paris"), WorkerPool(models), ENTRY, number=number)
        for number in range(2)
    ]
    good, bad = FIRST.format(0), FIRST.format(1)
    first = [good, bad, good, "no plan", bad, bad]
    engine = Engine(loaded, first[: sum(row.round == 1 for row in asked)], [ACCEPT, good, good, ACCEPT])
    rollouts = Rollouts(exercises, Examiner(exact), loaded.tokens, held=held)
    trainer = SimpleNamespace(
        asked=asked,
        use_vllm=True,
        num_generations=2,
        vllm_generation=engine,
        state=SimpleNamespace(global_step=0),
        args=SimpleNamespace(report_to=[]),
        accelerator=SimpleNamespace(is_main_process=True),
    )
    return Batch(rollouts([], trainer), rollouts, engine, models)


@pytest.fixture
def batch(loaded: Loaded, held: list[Held]) -> Batch:
    return played(loaded, held, ROWS)


def test_without_a_second_round_a_batch_is_drawn_once_and_masks_nothing(loaded: Loaded, held: list[Held]) -> None:
    batch = played(loaded, held[:1], ROWS[:2])
    assert set(batch.columns) == {"prompt_ids", "completion_ids", "logprobs", "played"}
    assert len(batch.engine.asked) == 1
    assert [row.before for row in batch.played] == [None, None]


def test_each_row_of_a_second_round_judges_the_plan_of_its_own_place(batch: Batch) -> None:
    outcomes = [row.outcome and (row.outcome.valid, row.outcome.score) for row in batch.played]
    first, second = outcomes[:6], outcomes[6:]
    assert first == [(True, 1.0), (True, 0.0), (True, 1.0), (False, None), (True, 0.0), (True, 0.0)]
    assert second == [(True, 1.0), None, (True, 1.0), (True, 0.0)]
    assert [row.before for row in batch.played[6:]] == [row.outcome for row in batch.played[2:6]]


def test_its_prompt_is_that_of_the_first_round_its_plan_and_its_answer(batch: Batch, loaded: Loaded) -> None:
    texts = [loaded.tokenizer.decode(prompt) for prompt in batch.columns["prompt_ids"]]
    for first, second, reply in ((2, 6, "Paris"), (4, 8, "Rome")):
        assert texts[second].startswith(texts[first])
        judged = batch.played[second].before
        assert judged is not None
        assert judged.text in texts[second]
        assert f"\n{reply}\n</reply" in texts[second]


def test_every_plan_is_run_once_and_one_that_accepts_not_at_all(batch: Batch) -> None:
    assert {name: len(model.requests) for name, model in batch.workers.items()} == {"good": 3, "bad": 3}


def test_where_there_is_no_answer_to_judge_a_row_counts_for_nothing(batch: Batch) -> None:
    counted = [set(mask) for mask in batch.columns["env_mask"]]
    assert counted == [{1}] * 7 + [{0}] + [{1}] * 2
    for column in ("prompt_ids", "completion_ids", "logprobs"):
        assert batch.columns[column][7] == batch.columns[column][3]


def test_each_round_is_drawn_and_scored_under_its_own_grammar(batch: Batch, held: list[Held]) -> None:
    assert [told for _, _, told in batch.engine.asked] == [
        {"grammar": f'root ::= "{name}"'} for name in ("first", "second")
    ]
    prompts = batch.columns["prompt_ids"]
    assert [batch.rollouts.held(prompt) for prompt in prompts] == [held[0]] * 6 + [held[1], held[0], held[1], held[1]]


def test_an_engine_is_asked_for_every_row_of_a_second_round_one_by_one(batch: Batch) -> None:
    assert [(len(prompts), alike) for prompts, alike, _ in batch.engine.asked] == [(6, 2), (4, 1)]


def test_what_prompts_of_a_group_begin_with_is_known(batch: Batch) -> None:
    prompts = [tuple(prompt) for prompt in batch.columns["prompt_ids"]]
    families = [batch.rollouts.family(prompt) for prompt in prompts]
    assert families == [(False, one) for one in prompts[:6]] + [
        (True, prompts[2]),
        (False, prompts[3]),
        (True, prompts[4]),
        (True, prompts[5]),
    ]


def test_rows_are_rewarded_and_kept_by_round(batch: Batch) -> None:
    kept: dict[int, list[Drawn]] = {}
    logged: dict[str, float] = {}
    given = {"model": "m", "task": {"name": "composite:train"}, "pool": {"small": {}}, "recursion": {}}
    exercises = [next(row.exercise for row in batch.played if row.exercise.number == number) for number in range(2)]
    reward = Reward(TrainConfig.model_validate(given), exercises, {}, told=kept.__setitem__)  # type: ignore[arg-type]
    state = SimpleNamespace(global_step=4, is_world_process_zero=True)
    assert reward(played=batch.played, trainer_state=state, log_metric=logged.__setitem__) == [
        *(1.0, 0.5),
        *(1.0, 0.0, 0.625, 0.5),
        *(1.0, None, 1.0, 0.5),
    ]
    assert [(one.round, one.before) for one in kept[5]] == [(1, None)] * 6 + [(2, 1.0), (2, 0.0), (2, 0.0)]
    assert (logged["plans/kept"], logged["plans/repaired"], logged["plans/spoiled"]) == (2 / 3, 1 / 2, 0.0)
    assert (logged["plans/calls"], logged["plans/valid"]) == (6, 5 / 6)


# ------------------------------------------------------------------------------------ a whole run


class Trained(NamedTuple):
    home: Path
    steps: dict[int, Step]
    pool: WorkerPool


def trained(home: Path) -> Trained:
    steps: dict[int, Step] = {}
    pool = toy_training.pool()
    train(toy_training.config(home, **toy_training.RECURSION), home / "run", pool, told=steps.__setitem__)
    return Trained(home, steps, pool)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(tmp_path_factory.mktemp("whole"))


def mean(whole: Trained, name: str, numbers: range) -> float:
    values = [whole.steps[number][name] for number in numbers if name in whole.steps[number]]
    return sum(values) / len(values)


def test_grpo_learns_to_keep_what_is_right(whole: Trained) -> None:
    assert mean(whole, "spoiled", range(1, 4)) > 0.4
    assert mean(whole, "spoiled", range(9, 13)) < 0.1
    assert mean(whole, "kept", range(9, 13)) > mean(whole, "kept", range(1, 4))


def test_a_step_has_the_plans_of_both_rounds_and_workers_are_asked_once_for_each(whole: Trained) -> None:
    files = sorted((whole.home / "run" / "plans").iterdir())
    plans = [plan for file in files for plan in read_lines(file, Drawn)]
    assert sum(plan.round == 1 for plan in plans) == 12 * 16
    models = [worker.model for worker in whole.pool.values()]
    asked = sum(len(model.requests) for model in models if isinstance(model, ScriptedModel))
    assert asked == len([plan for plan in plans if plan.workflow])
    assert asked == sum(step["calls"] for step in whole.steps.values())
    assert all(plan.score == plan.before for plan in plans if plan.round == 2 and not plan.workflow and plan.reward)


def test_a_killed_run_goes_on_at_the_same_next_step(whole: Trained, tmp_path: Path) -> None:
    home = tmp_path / "killed"
    shutil.copytree(whole.home, home, ignore=shutil.ignore_patterns("run"))
    shutil.copytree(whole.home / "run" / "warm_start", home / "run" / "warm_start")
    toy_training.kill(home, after=3, **toy_training.RECURSION)
    again = trained(home)
    assert min(again.steps) == 3  # the newest checkpoint is of step 2
    for number, step in again.steps.items():
        expected = whole.steps[number]
        assert {name: step[name] for name in step if name != "step_time"} == {
            name: expected[name] for name in expected if name != "step_time"
        }
