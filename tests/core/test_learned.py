"""Learned conductors in the core: selectors, the user's own examples, and the folder."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from rl_conductor import (
    Conductor,
    ConfigError,
    Limits,
    Planner,
    Policy,
    PolicyError,
    ScriptedModel,
    Step,
    Worker,
    WorkerPool,
    Workflow,
)
from rl_conductor.config.discovery import discover
from rl_conductor.planning.routing.domain import Domain
from rl_conductor.planning.routing.linear_score import LinearScore
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor.pool.pool_file import PlannerEntry
from rl_conductor.prompting.worker_prompt import subtask_in
from rl_conductor.replay import replay
from rl_conductor.text.features import text_features
from rl_conductor.types import Card, Request
from rl_conductor.workflow.example import PlanExample
from rl_conductor.workflow.policy import DataRule
from rl_conductor_training.learn.folder import LearnedSystem, write_conductor_folder

ADD = Workflow(steps=(Step(subtask="Add.", worker="adder"),))
CHAIN = Workflow(
    steps=(Step(subtask="Add.", worker="adder"), Step(subtask="Write.", worker="writer", access=frozenset({0})))
)


def pool(tags: frozenset[str] = frozenset()) -> WorkerPool:
    return WorkerPool(
        {
            "adder": {"model": ScriptedModel("4"), "description": "adds", "tags": tags},
            "writer": {"model": ScriptedModel("four"), "description": "writes", "tags": tags},
        }
    )


def planner(reply: str = "model_id = [0]\nsubtasks = ['Add.']\naccess_list = [[]]") -> ScriptedModel:
    return ScriptedModel(reply, name="planner")


def selector() -> WorkflowSelector:
    weights = text_features("write in words")
    return WorkflowSelector(workflows=(ADD, CHAIN), scores=(LinearScore(bias=0.2), LinearScore(weights=weights)))


async def test_a_selector_chooses_the_workflow_without_a_call_to_the_planner() -> None:
    model = planner()
    conductor = Conductor(model, pool(), selector=selector())
    chained = await conductor.run("Please write 2 and 2 in words")
    assert (chained.text, chained.rounds[0].plan.source) == ("four", "learned")
    assert (await conductor.run("2 plus 2")).text == "4"
    assert not model.requests
    assert (await replay(chained)).text == "four"


async def test_the_subtask_of_a_learned_workflow_of_one_step_reaches_its_worker() -> None:
    adder = ScriptedModel("4")
    conductor = Conductor(planner(), WorkerPool({"adder": adder}), selector=WorkflowSelector(workflows=(ADD,)))
    await conductor.run("2 plus 2")
    assert subtask_in(adder.requests[0].messages[-1].text) == "Add."


def domain(question: str) -> Domain:
    score = LinearScore(weights=text_features(question))
    return Domain(score=score, threshold=0.5, accepted=1.0, refused=1.0)


async def test_a_request_unlike_the_learned_questions_is_planned() -> None:
    model = planner()
    limited = WorkflowSelector(workflows=(CHAIN,), domain=domain("2 plus 2"))
    conductor = Conductor(model, pool(), selector=limited)
    assert (await conductor.run("3 plus 3")).rounds[0].plan.source == "learned"
    plan = (await conductor.run("Good morning")).rounds[0].plan
    assert plan.source == "planner"
    assert plan.planning_reason == "the request is unlike the questions of the learned workflows"
    assert not plan.errors
    assert len(model.requests) == 1
    assert WorkflowSelector.model_validate_json(limited.model_dump_json()) == limited


async def test_a_request_that_the_planner_may_not_see_keeps_the_learned_workflow() -> None:
    model = planner()
    conductor = Conductor(
        model,
        pool(frozenset({"local"})),
        selector=WorkflowSelector(workflows=(CHAIN,), domain=domain("2 plus 2")),
        policy=Policy(data_class="private", data_rules={"private": DataRule(tags=frozenset({"local"}))}),
    )
    trace = await conductor.run("Good morning")
    assert trace.rounds[0].plan.source == "learned"
    assert not model.requests


async def test_a_learned_workflow_that_the_limits_forbid_is_replaced_by_a_plan() -> None:
    conductor = Conductor(planner(), pool(), selector=WorkflowSelector(workflows=(CHAIN,)))
    trace = await conductor.run("2 plus 2", limits=Limits(steps=1))
    plan = trace.rounds[0].plan
    assert (plan.source, trace.text) == ("planner", "4")
    assert plan.planning_reason == "the learned workflow is not allowed: 2 steps, but 1 to 1 are allowed"
    assert not plan.errors


def trained_planner(general: Planner) -> Planner:
    """Plans with the model `trained`, but only requests like "2 plus 2"."""
    trained = ScriptedModel("model_id = [0]\nsubtasks = ['Add.']\naccess_list = [[]]", name="trained")
    return Planner(model=trained, domain=domain("2 plus 2"), general=general)


async def test_a_trained_planner_leaves_requests_of_other_kinds_to_the_general_one() -> None:
    general = planner()
    conductor = Conductor(trained_planner(Planner(model=general)), pool())
    assert (await conductor.run("3 plus 3")).planner == "scripted:trained"
    assert not general.requests
    trace = await conductor.run("Good morning")
    plan = trace.rounds[0].plan
    assert (trace.planner, plan.source) == ("scripted:planner", "planner")
    assert plan.planning_reason == "the request is unlike the questions that scripted:trained was trained on"
    assert (await replay(trace)).rounds[0].plan.workflow == plan.workflow


def test_the_policy_of_a_conductor_is_checked_for_both_planners() -> None:
    general = Planner(model=planner())
    local = Card(name="planner", tags=frozenset({"local"}))
    rule = DataRule(tags=frozenset({"local"}))
    with pytest.raises(PolicyError, match="the planner scripted:planner may not see this request"):
        Conductor(
            replace(trained_planner(general), card=local),
            pool(frozenset({"local"})),
            policy=Policy(data_class="private", data_rules={"private": rule}),
        )


def test_a_planner_with_a_domain_needs_a_general_one() -> None:
    with pytest.raises(ConfigError, match="general is missing"):
        Planner(model=planner(), domain=domain("2 plus 2"))


def test_wrapping_the_models_of_a_planner_includes_the_general_one() -> None:
    wrapped = trained_planner(Planner(model=planner())).wrap_models(lambda model: ScriptedModel("", name="new"))
    assert [each.model.name for each in wrapped.planners] == ["scripted:new", "scripted:new"]


async def test_a_folder_restores_the_domain_of_a_trained_planner(tmp_path: Path) -> None:
    entry = PlannerEntry(model="openai:trained", options={"base_url": "http://127.0.0.1:9"})
    base = Planner(model=planner())
    learned = LearnedSystem(method="weights", planner=base, weights=entry, domain=domain("2 plus 2"))
    write_conductor_folder(tmp_path, learned, pool())
    loaded = Conductor.load(tmp_path, pool=pool())
    assert loaded.planner.domain == domain("2 plus 2")
    assert [each.model.name for each in loaded.planner.planners] == ["openai:trained", "scripted:scripted"]
    own = Conductor.load(tmp_path, pool=pool(), planner=planner())
    assert own.planner.domain is None


def test_a_selector_needs_a_score_for_each_workflow_and_all_workers() -> None:
    with pytest.raises(ValidationError, match="2 workflows need as many scores, not 1"):
        WorkflowSelector(workflows=(ADD, CHAIN), scores=(LinearScore(),))
    with pytest.raises(ConfigError, match="the learned workflows use 'writer', but the pool has adder"):
        Conductor(planner(), {"adder": ScriptedModel("4")}, selector=selector())


async def test_learned_instructions_and_descriptions_come_back_as_they_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = 'Ask "adder" first \U0001f600\n\x7f\x01 \u2028 \\ # done'
    learned = LearnedSystem(
        method="instructions",
        planner=Planner(model=planner()),
        instructions=text,
        descriptions={"adder": text, "gone": "x"},
    )
    write_conductor_folder(tmp_path, learned, pool())
    model = planner()
    with caplog.at_level(logging.WARNING, "rl_conductor"):
        loaded = Conductor.load(tmp_path, pool=pool(), planner=Planner(model=model, instructions="Be brief."))
    assert not caplog.records  # the pool is the same, apart from what was learned
    assert loaded.planner.instructions == f"Be brief.\n{text}"
    assert [worker.card.description for worker in loaded.pool.values()] == [text, "writes"]
    await loaded.run("2 plus 2")
    assert 'Ask "adder" first' in model.requests[0].messages[0].text


async def test_the_planner_is_shown_the_nearest_of_the_users_own_examples() -> None:
    questions = ["Add 1 and 2", "Add 3 and 4", "Add 5 and 6", "Add 7 and 8", "Write a letter to the mayor"]
    examples = [PlanExample(question=question, workflow=CHAIN, reasoning="Two skills.") for question in questions]
    model = planner()
    trace = await Conductor(Planner(model=model, examples=examples), pool()).run("Write a letter to the bank")
    texts = [message.text for message in model.requests[0].messages]
    shown = [question for question in questions if any(question in text for text in texts)]
    assert len(shown) == 4
    assert questions[4] in texts[-3]  # the most similar question comes last
    assert "Two skills." in texts[-2]
    assert trace.setup is not None
    assert trace.setup.planner.examples == tuple(examples)


async def test_examples_that_the_policy_forbids_are_left_out() -> None:
    model = planner()
    conductor = Conductor(Planner(model=model, examples=[PlanExample(question="Old?", workflow=CHAIN)]), pool())
    await conductor.run("2 plus 2", limits=Limits(steps=1))
    assert len(model.requests[0].messages) == 2


async def test_a_folder_restores_the_selector_and_the_examples(tmp_path: Path) -> None:
    examples = (PlanExample(question="2 plus 2?", workflow=ADD),)
    base = Planner(model=planner(), examples=examples)
    learned = LearnedSystem(method="linear", planner=base, selector=selector(), instructions="Be brief.")
    write_conductor_folder(tmp_path, learned, pool())
    conductor = Conductor.load(tmp_path, pool=pool(), planner=replace(base, examples=3))
    assert conductor.planner.examples == examples
    assert conductor.planner.instructions == "Be brief."
    assert conductor.config.selector == selector()
    with pytest.raises(ConfigError, match=r"Conductor.load\(folder, pool=pool\)"):
        Conductor.load(tmp_path)


def test_a_changed_pool_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = pool()
    write_conductor_folder(tmp_path, LearnedSystem(method="fixed", planner=Planner(model=planner())), first)
    with caplog.at_level(logging.WARNING, "rl_conductor"):
        Conductor.load(tmp_path, pool=pool())
        assert "was learned for another pool" not in caplog.text
        adder = Worker.of("adder", ScriptedModel("4"), description="subtracts")
        Conductor.load(tmp_path, pool=WorkerPool([adder, Worker.of("new", ScriptedModel(""))]))
    assert "worker 'writer' is missing; worker 'new' is new; worker 'adder' has changed" in caplog.text


def test_a_folder_that_lost_a_file_or_its_pool_says_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / "learned"
    folder.mkdir()
    (tmp_path / "pool.toml").write_text('[workers.adder]\nmodel = "embedded:smollm2-135m"\n')
    workers = pool()
    learned = LearnedSystem(method="linear", planner=Planner(model=planner()), selector=selector())
    write_conductor_folder(folder, learned, workers, tmp_path / "pool.toml")
    (tmp_path / "pool.toml").unlink()
    with pytest.raises(ConfigError, match=r"which is not there: .* change pool = \.\.\. in conductor\.toml"):
        Conductor.load(folder)
    assert Conductor.load(folder, pool=workers).config.selector == selector()
    (folder / "selector.json").write_text("{")
    with pytest.raises(ConfigError, match="run the same rl-conductor learn command again"):
        Conductor.load(folder, pool=workers)
    (folder / "selector.json").unlink()
    with pytest.raises(ConfigError, match=r"has no selector\.json, .* run the same rl-conductor learn command again"):
        Conductor.load(folder, pool=workers)


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it has no conductor\.toml; create one with rl-conductor learn"):
        Conductor.load(tmp_path)


def test_a_folder_can_be_discovered_like_a_pool_file(tmp_path: Path) -> None:
    (tmp_path / "pool.toml").write_text('[workers.adder]\nmodel = "openai:a"\noptions.base_url = "http://x"\n')
    workers = WorkerPool.from_toml(tmp_path / "pool.toml")
    folder = tmp_path / "learned"
    folder.mkdir()
    learned = LearnedSystem(
        method="fixed", planner=Planner(model=planner()), selector=WorkflowSelector(workflows=(ADD,))
    )
    write_conductor_folder(folder, learned, workers, tmp_path / "pool.toml")
    discovered = discover(pool_file=folder)
    assert discovered.selector == WorkflowSelector(workflows=(ADD,))
    assert "learned conductor" in discovered.reasons[0]
    assert Conductor.load(folder).config.selector == discovered.selector
    assert discovered.selector.select(Request.user("2 plus 2")) == ADD


PRINT_FINGERPRINT = """
from rl_conductor import ScriptedModel, WorkerPool
from rl_conductor.config.learned_folder import fingerprint_worker
print(fingerprint_worker(WorkerPool({"a": ScriptedModel("x")})["a"]))
"""


def test_a_worker_has_the_same_fingerprint_in_every_process() -> None:
    """Sets have another order in each process, which must not make a learned folder look outdated."""
    prints = [
        subprocess.run(
            [sys.executable, "-c", PRINT_FINGERPRINT],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "12"
    ]
    assert prints[0] == prints[1]
