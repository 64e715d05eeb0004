"""Training on a table of scored plans, with a tiny model, and the learner that does it within `learn`."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from permuted_workers import permute_workers

import random_model
from rl_conductor import Conductor, Limits, Message, Planner, Sampling, ScriptedModel, Step, Workflow
from rl_conductor.calls.budget import NOTHING
from rl_conductor.errors import ConfigError
from rl_conductor.models import model as model_by_name
from rl_conductor.scoring import Sample, Task
from rl_conductor_training.learn import PlannerWeights
from rl_conductor_training.learn.budget import LearningBudget
from rl_conductor_training.learn.experience import Experience, fingerprint_workers
from rl_conductor_training.learn.folder import LearnedSystem, write_conductor_folder
from rl_conductor_training.learn.runner import Runner
from rl_conductor_training.tasks.scorers.text import exact
from rl_conductor_training.train.policy.gguf_adapter import to_gguf
from rl_conductor_training.train.policy.model_loading import load_model
from rl_conductor_training.train.reward_table import training as table_training
from rl_conductor_training.train.reward_table.objectives import group_loss, question_loss, raft_loss
from rl_conductor_training.train.reward_table.policy import encode_questions
from rl_conductor_training.train.reward_table.prompt import PlanPrompt
from rl_conductor_training.train.reward_table.table import ScoredWorkflow, TableQuestion, TableSettings
from rl_conductor_training.train.reward_table.training import (
    BEST,
    SUPERVISED,
    TableData,
    TableTraining,
    train_on_table,
)

WORKERS = ("north", "south")
RIGHT = ("south",)
PLANS = (("north",), RIGHT, ("north", "south"))


def conductor() -> Conductor:
    replies = {"north": "ice", "south": "sun"}
    pool = {name: {"model": ScriptedModel(replies[name]), "description": f"knows the {name}"} for name in WORKERS}
    return Conductor(Planner(model=ScriptedModel("?", name="planner"), form="lists", examples=0), pool)


def workflow(*names: str) -> Workflow:
    return Workflow(steps=tuple(Step(subtask="Answer.", worker=name) for name in names))


def question(number: int) -> TableQuestion:
    """Builds a question for which three plans were scored."""
    return TableQuestion(
        id=str(number),
        conversation=(Message.user(f"Case {number}: what is in the south?"),),
        plans=tuple(ScoredWorkflow(workflow=workflow(*names), score=float(names == RIGHT)) for names in PLANS),
    )


def data(train: int = 4, validation: int = 2) -> TableData:
    questions = [question(number) for number in range(train + validation)]
    return TableData(questions[:train], questions[train:], PlanPrompt.of(conductor()))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(random_model.make(tmp_path_factory.mktemp("tiny")))


def settings(model: str, **changed: Any) -> TableSettings:
    defaults: dict[str, Any] = {
        "model": model,
        "supervised_steps": 2,
        "supervised_batch": 2,
        "supervised_rate": 1e-3,
        "steps": 8,
        "batch": 2,
        "learning_rate": 8e-3,
        "evaluate_every": 8,
    }
    return TableSettings.model_validate(defaults | changed)


def expected(training: TableTraining, stage: str) -> float:
    return [point.validation.expected for point in training.curve if point.stage == stage][-1]


def stop_after(questions: int) -> Callable[[], bool]:
    """Returns an `is_over` that stops a training after some questions."""
    calls = count(1)
    return lambda: next(calls) > questions


@pytest.mark.parametrize("method", ["expectation", "groups", "raft"])
def test_right_plans_become_more_probable_than_after_supervision(model: str, method: str, tmp_path: Path) -> None:
    training = train_on_table(data(), settings(model, method=method), tmp_path)
    assert training.is_complete
    assert expected(training, method) > expected(training, SUPERVISED) + 0.15


def test_a_model_with_an_adapter_is_trained_on_from_there(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = train_on_table(data(), settings(model, rank=4), tmp_path / "first")
    to_gguf(tmp_path / "first" / BEST, tmp_path / "shipped.gguf", base=model)
    monkeypatch.setattr(table_training, "shipped_adapter", lambda _: tmp_path / "shipped.gguf")
    second = train_on_table(data(), settings(model, steps=1, evaluate_every=1, replay=0), tmp_path / "second")
    assert set(second.losses) == {"expectation"}
    assert second.curve[0].validation.expected > expected(first, SUPERVISED) + 0.1
    assert json.loads((tmp_path / "second" / BEST / "adapter_config.json").read_text())["r"] == 4


def test_an_embedded_model_with_an_adapter_is_not_taken_for_its_base() -> None:
    with pytest.raises(ConfigError, match="write the name of its base model"):
        load_model("embedded:conductor-135m", dtype="float32")


ROLES = {"north": "freeze", "south": "thaw"}


def permuted(number: int, order: int) -> TableQuestion:
    """Permutes the workers of a question; orders 0 and 1 differ."""
    cards = PlanPrompt.of(conductor()).cards
    rng = random.Random((2, 0)[order])
    return permute_workers(question(number), cards, wordings={"south": ["is warm"]}, roles=ROLES, rng=rng)


def test_permuted_workers_have_other_numbers_words_and_reasons_but_the_same_scores() -> None:
    first, second = permuted(0, 0), permuted(0, 1)
    assert [card.name for card in first.cards] == [*reversed([card.name for card in second.cards])]
    assert {card.name: card.strengths for card in first.cards} == {"north": "", "south": "is warm"}
    assert [(plan.workflow, plan.score) for plan in first.plans] == [
        (plan.workflow, plan.score) for plan in question(0).plans
    ]
    assert {first.plans[1].reasoning, second.plans[1].reasoning} == {
        "0 freeze, 1 thaw: thaw 1",
        "0 thaw, 1 freeze: thaw 0",
    }


def test_a_training_reads_plans_by_the_cards_of_each_question(model: str, tmp_path: Path) -> None:
    questions = [permuted(number, number % 2) for number in range(6)]
    permuted_data = TableData(questions[:4], questions[4:], data().prompt)
    training = train_on_table(permuted_data, settings(model, replay=0, steps=2), tmp_path)
    assert training.is_complete
    assert training.started_at is None
    assert set(training.losses) == {SUPERVISED, "expectation"}


def test_the_same_plan_has_other_tokens_in_another_order_of_workers(model: str) -> None:
    loaded = load_model(model, dtype="float32")
    first, second = encode_questions([permuted(0, 0), permuted(0, 1)], data().prompt, loaded)
    assert first.prompt != second.prompt
    assert first.plans != second.plans
    texts = [loaded.tokenizer.decode(encoded.plans[1][:-1]) for encoded in (first, second)]
    assert [encoded.source.read(text) for encoded, text in zip((first, second), texts, strict=True)] == [
        workflow("south"),
        workflow("south"),
    ]


LOG_PROBS = torch.tensor([-3.0, -1.0, -2.5, -4.0], dtype=torch.float64)
SCORES = torch.tensor([1.0, 0.0, 0.5, 1.0], dtype=torch.float64)
PLAIN = {"entropy": 0.0, "support": 0.0}


def gradient(loss: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    log_probs = LOG_PROBS.clone().requires_grad_()
    return torch.autograd.grad(loss(log_probs), log_probs)[0]


def test_the_exact_gradient_is_that_of_the_expected_score() -> None:
    exact_settings = TableSettings(method="expectation", **PLAIN)
    ours = gradient(lambda log_probs: question_loss(log_probs, SCORES, exact_settings))
    q = LOG_PROBS.softmax(0)
    by_hand = -q * (SCORES - (q * SCORES).sum())
    torch.testing.assert_close(ours, by_hand)


@pytest.mark.parametrize("size", [2, 64])
def test_gradients_of_sampled_groups_average_to_the_exact_gradient(size: int) -> None:
    torch.manual_seed(0)
    exact_gradient = gradient(lambda log_probs: -(log_probs.softmax(0) * SCORES).sum())

    def mean_loss(log_probs: torch.Tensor) -> torch.Tensor:
        return torch.stack([group_loss(log_probs.log_softmax(0), SCORES, size) for _ in range(4000)]).mean()

    torch.testing.assert_close(gradient(mean_loss), exact_gradient, atol=0.012, rtol=0)
    assert exact_gradient.abs().min() > 0.02


def test_raft_raises_only_the_right_plans_of_the_group() -> None:
    torch.manual_seed(0)
    ours = gradient(lambda log_probs: raft_loss(log_probs, SCORES, 2000))
    q = LOG_PROBS.softmax(0) * (SCORES == 1)
    torch.testing.assert_close(ours, -q / q.sum(), atol=0.05, rtol=0)
    nothing_right = gradient(lambda log_probs: raft_loss(log_probs, SCORES * 0, 8))
    assert not nothing_right.any()


def test_the_entropy_term_favours_an_even_choice_and_the_support_term_plans_of_the_table() -> None:
    def loss(**weights: float) -> torch.Tensor:
        term = TableSettings(method="expectation", **(PLAIN | weights))
        return gradient(lambda log_probs: question_loss(log_probs, SCORES * 0, term))

    most_probable = LOG_PROBS.argmax()
    assert loss(entropy=1.0)[most_probable] > 0
    assert (loss(support=1.0) < 0).all()
    torch.testing.assert_close(loss(support=1.0), -LOG_PROBS.softmax(0))


def test_an_interrupted_training_ends_like_a_whole_one(model: str, tmp_path: Path) -> None:
    own = settings(model, method="groups", steps=4, evaluate_every=2)
    whole = train_on_table(data(), own, tmp_path / "whole")
    for questions in (3, 12):
        stopped = train_on_table(data(), own, tmp_path / "stopped", is_over=stop_after(questions))
        assert not stopped.is_complete
    resumed = train_on_table(data(), own, tmp_path / "stopped")
    assert resumed.is_complete
    assert [(point.stage, point.step) for point in resumed.curve] == [("supervised", 2), ("groups", 2), ("groups", 4)]
    assert expected(resumed, "groups") == pytest.approx(expected(whole, "groups"), abs=1e-5)
    assert resumed.losses["groups"] == pytest.approx(whole.losses["groups"], abs=1e-4)


def test_the_best_adapter_is_kept_and_a_finished_training_is_not_repeated(model: str, tmp_path: Path) -> None:
    reports: list[str] = []
    ruinous = settings(model, steps=2, learning_rate=10.0, evaluate_every=1)
    training = train_on_table(data(), ruinous, tmp_path, report=reports.append)
    greedy = [(point.validation.greedy, point.validation.expected) for point in training.curve]
    assert training.best == greedy.index(max(greedy))
    assert (tmp_path / "best" / "adapter_model.safetensors").exists()
    assert reports[0].startswith("loading")
    assert any(report.startswith("supervised: step 1 of 2, loss") for report in reports)
    assert train_on_table(data(), ruinous, tmp_path) == training


def runner(folder: Path) -> tuple[Runner, list[Sample]]:
    own = conductor()
    samples = [Sample(id=str(number), question=f"Case {number}?", answer="sun") for number in range(6)]
    experience = Experience(folder / "experience.jsonl")
    workers = fingerprint_workers(own.pool, {})
    run = Runner(task=Task("cases", tuple(samples), exact), conductor=own, experience=experience, workers=workers)
    return run, samples


async def first_plan(own: Conductor) -> str:
    """Returns the text of the first plan that the planner's model writes."""
    planner, prompt = own.planner, PlanPrompt.of(own)
    request = planner.request(prompt.messages([Message.user("Case 1?")]), planner.response_format(prompt.space), 0)
    return (await planner.model.complete(request)).text


async def test_the_trained_planner_is_saved_and_loaded_with_its_adapter(model: str, tmp_path: Path) -> None:
    folder, moved = tmp_path / "learned", tmp_path / "moved"
    folder.mkdir()
    run, samples = runner(folder)
    await run.run_workflows((sample, workflow(*names)) for sample in samples for names in PLANS)
    learner = PlannerWeights(settings(model, steps=1, supervised_steps=3, supervised_rate=1e-2))
    await learner.search(run, samples[:4], samples[4:])
    assert not run.is_exhausted
    learned = learner.apply(run.conductor)
    system = LearnedSystem(method=learner.name, planner=learned.planner, weights=learner.planner_entry)
    write_conductor_folder(folder, system, run.conductor.pool)
    trained = await first_plan(learned)
    await run.aclose()

    folder.rename(moved)
    loaded = Conductor.load(moved, pool=conductor().pool)
    beginning = Sampling(max_tokens=30, temperature=0.0)
    base = Planner(model=model_by_name(f"transformers:{model}"), form="lists", examples=0, sampling=beginning)
    untrained = Conductor(base, loaded.pool)
    try:
        assert await first_plan(loaded) == trained
        assert not trained.startswith(await first_plan(untrained))
    finally:
        await loaded.aclose()
        await untrained.aclose()


async def test_training_stops_when_the_time_is_over(model: str, tmp_path: Path) -> None:
    run, samples = runner(tmp_path)
    await run.run_workflows((sample, workflow(*names)) for sample in samples for names in PLANS)
    run.begin_stage(LearningBudget(Limits(seconds=0.01), NOTHING).stage(1.0))
    learner = PlannerWeights(settings(model, supervised_steps=10_000))
    await learner.search(run, samples[:4], samples[4:])
    assert run.is_exhausted
    assert learner.apply(run.conductor) is run.conductor
    await run.aclose()
