"""The environment as a trainer uses it: `vf-eval`, a policy and workers behind a real local server."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from verifiers.v1.envs.single_agent.env import SingleAgentEnvConfig

from core.models.wire.base import SECRET, Said, Seen
from core.models.wire.openai import OpenAIWire
from rl_conductor.errors import ConfigError
from rl_conductor_training.train.config import read_config
from verifiers_conductor import ConductorConfig, ConductorTaskset

ROOT = Path(__file__).parents[2]
PLAN = 'One is enough.\nmodel_id = [{}]\nsubtasks = ["Multiply."]\naccess_list = [[]]'
PLANS = {
    "right": PLAN.format(1),
    "wrong": PLAN.format(0),
    "failing": PLAN.format(2),
    "none": "The answer is 42.",
}
"""The text of the policy for the question of that name."""


class Policy(OpenAIWire):
    """The model `policy` writes plans; the others behave as their names say."""

    def whole(self, seen: Seen, said: Said) -> Any:
        """A plan for the question, if one is asked for."""
        plan = next((text for name, text in PLANS.items() if f"({name})" in seen.text), "")
        return super().whole(seen, Said(pieces=(plan,)) if seen.scenario == "policy" else said)


@pytest.fixture(scope="module")
def policy() -> Iterator[Policy]:
    with Policy.running() as policy:
        yield policy


@pytest.fixture
def recipe(tmp_path: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    questions = [f'{{"question": "What is 6 * 7? ({name})", "answer": "42", "scoring": "numeric"}}' for name in PLANS]
    (tmp_path / "tasks.jsonl").write_text("\n".join(questions), encoding="utf-8")
    workers = {"wrong": "empty-handed", "right": "reasoning", "failing": "unauthorized"}
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'model = "trained elsewhere"\ntask.name = "jsonl:{tmp_path / "tasks.jsonl"}"\n'
        "plan.examples = 1\ncurriculum.shuffle = false\npool.remember = false\n"
        + "".join(
            f'[pool.workers.{name}]\nmodel = "openai:{model}"\noptions = {{ base_url = "{policy.url}" }}\n'
            for name, model in workers.items()
        ),
        encoding="utf-8",
    )
    return recipe


@pytest.fixture
def traces(recipe: Path, policy: Policy) -> dict[str, dict[str, Any]]:
    """The traces of one `vf-eval` over all questions, by the question's name."""
    out = recipe.with_name("out")
    command = [
        *(str(Path(sys.executable).with_name("vf-eval")), "verifiers-conductor", "-m", "policy", "--no-push"),
        *("--env.taskset.task.recipe", str(recipe), "--env.agent.runtime.type", "subprocess", "-o", str(out)),
        *("--client.base-url", policy.url, "--client.api-key-var", "OPENAI_API_KEY"),
    ]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=recipe.parent)
    assert process.returncode == 0, process.stdout + process.stderr
    [file] = out.rglob("traces.jsonl")
    lines = [json.loads(line)["traces"][0] for line in file.read_text(encoding="utf-8").splitlines()]
    names = {json.dumps(trace["task"]).partition("6 * 7? (")[2].partition(")")[0]: trace for trace in lines}
    assert names.keys() == PLANS.keys()
    return names


def test_plans_are_executed_and_get_the_papers_rewards(traces: dict[str, dict[str, Any]]) -> None:
    rewards = {name: trace["rewards"]["plan"] and trace["rewards"]["plan"]["score"] for name, trace in traces.items()}
    assert rewards == {"right": 1, "wrong": 0.5, "none": 0, "failing": None}
    assert traces["failing"]["errors"]  # so that a trainer leaves it out, rather than to learn that it was wrong
    metrics = traces["right"]["metrics"]
    assert (metrics["valid"], metrics["right"], metrics["steps"], metrics["workers"]) == (1, 1, 1, 1)
    assert traces["none"]["metrics"]["valid"] == 0


def test_the_prompt_equals_the_one_in_training_and_serving(recipe: Path) -> None:
    first = next(iter(ConductorTaskset(ConductorConfig(task={"recipe": recipe}))))
    assert first.data.system_prompt.startswith("You are a conductor.")
    assert [turn.role for turn in first.data.prompt] == ["user", "assistant", "user"]
    assert "What is 6 * 7?" in first.data.prompt[-1].content


def test_more_instances_than_questions_start_another_epoch_in_another_order(recipe: Path) -> None:
    questions = [
        task.data.prompt[-1].content for task in ConductorTaskset(ConductorConfig(task={"recipe": recipe}, size=8))
    ]
    assert set(questions[:4]) == set(questions[4:])
    assert questions[:4] != questions[4:]


def test_the_trainer_file_of_prime_rl_selects_this_taskset_and_a_recipe_that_it_accepts() -> None:
    trainer = tomllib.loads((ROOT / "recipes" / "prime-rl-7b.toml").read_text(encoding="utf-8"))
    [source] = trainer["orchestrator"]["train"]["source"]
    narrowed = SingleAgentEnvConfig.model_validate(source["env"])
    assert isinstance(narrowed.taskset, ConductorConfig)
    assert narrowed.taskset.task.recipe is not None
    config = read_config(ROOT / narrowed.taskset.task.recipe)
    assert not config.reward.cost_bonus
    assert config.recursion is None
    assert trainer["orchestrator"]["group_size"] == config.grpo.rollouts
    assert trainer["orchestrator"]["batch_size"] == config.grpo.questions * config.grpo.rollouts
    assert trainer["orchestrator"]["train"]["sampling"]["max_completion_tokens"] == config.plan.max_tokens


def test_a_missing_training_file_is_reported_with_its_option() -> None:
    with pytest.raises(ConfigError, match=r"--env\.taskset\.task\.recipe"):
        list(ConductorTaskset(ConductorConfig()))


def test_a_reward_that_compares_a_group_is_refused(recipe: Path) -> None:
    recipe.write_text("reward.cost_bonus = 0.1\n" + recipe.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(ConfigError, match="cost_bonus = 0"):
        list(ConductorTaskset(ConductorConfig(task={"recipe": recipe})))


def test_a_second_round_is_refused(recipe: Path) -> None:
    recipe.write_text("recursion.share = 1\n" + recipe.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"remove \[recursion\]"):
        list(ConductorTaskset(ConductorConfig(task={"recipe": recipe})))
