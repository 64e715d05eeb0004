from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import toy_training
from rl_conductor.errors import ConfigError
from rl_conductor_training.train.policy.model_loading import load_model
from rl_conductor_training.train.prompt_lengths import check_prompts
from rl_conductor_training.train.setup import TrainingSetup
from rl_conductor_training.train.train import train

LONG = "Solve the problem step by step. " * 500
"""About 4,000 tokens; the model's context is 4,096."""


def questions(file: Path, *texts: str) -> dict[str, str]:
    file.write_text("".join(f"{json.dumps({'question': text, 'answer': '42'})}\n" for text in texts), encoding="utf-8")
    return {"name": f"jsonl:{file}"}


@pytest.mark.parametrize("warm_start", [{}, {"warm_start": None}])
@pytest.mark.parametrize("table", ["task", "validation"])
def test_a_question_that_does_not_fit_the_model_is_reported_at_the_start(
    tmp_path: Path, table: str, warm_start: dict[str, Any]
) -> None:
    task = questions(tmp_path / "long.jsonl", "What is 5 * 7?", LONG)
    config = toy_training.config(tmp_path, **warm_start, **{table: task if table == "task" else {"task": task}})
    problem = (
        r"the question 'Solve the .* does not fit: its prompt has 4,818 tokens and a plan up to 60, but the "
        r"context is 4,096; shorten"
    )
    with pytest.raises(ConfigError, match=problem):
        train(config, tmp_path / "run", toy_training.pool())
    assert not (tmp_path / "run" / "warm_start").exists()


def test_a_prompt_leaves_out_the_middle_of_a_long_question_to_fit_the_context(tmp_path: Path) -> None:
    plan = {"examples": 0, "max_steps": 1, "max_tokens": 60, "context": 4096}
    config = toy_training.config(tmp_path, task=questions(tmp_path / "long.jsonl", LONG), plan=plan)
    check_prompts(TrainingSetup(config, toy_training.pool()), load_model(config.model, dtype="float32"))


@pytest.mark.parametrize(
    "changed", [{"plan": {"examples": 0, "context": 700, "max_tokens": 60}}, {"vllm": {"context_length": 700}}]
)
def test_a_smaller_context_of_serving_or_sampling_is_respected(tmp_path: Path, changed: dict[str, Any]) -> None:
    config = toy_training.config(tmp_path, **changed)
    with pytest.raises(ConfigError, match="a plan up to 60, but the context is 700") as raised:
        check_prompts(TrainingSetup(config, toy_training.pool()), load_model(config.model, dtype="float32"))
    assert ("as plan.context" in str(raised.value)) == ("plan" not in changed)
