"""A toy training: of two workers one is always right, and a tiny model with random weights has to learn which."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from accelerate import PartialState

import random_model
from forks import start_fork
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.workflow.workflow import Step, Workflow
from rl_conductor_training.train.config import TrainConfig
from rl_conductor_training.train.train import train
from rl_conductor_training.train.trainers.callbacks import StepMetrics
from rl_conductor_training.train.warm_start.sft_data import Demonstration

QUESTION = "What is 6 * 7?"
STEPS, ROLLOUTS = 20, 16
GRPO = {
    "steps": STEPS,
    "questions": 1,
    "rollouts": ROLLOUTS,
    "micro_batch": 8,
    "learning_rate": 1.5e-3,
    "warmup": 0.0,
    "schedule": "constant_with_warmup",
}

RECURSION = {
    "recursion": {"share": 0.5},
    "grpo": GRPO | {"steps": 12, "questions": 2, "rollouts": 8, "learning_rate": 2e-3},
}
"""Settings that give one of two questions a second round, in which the model has to learn which answers to accept."""

ONE_STEP: dict[str, Any] = {"warm_start": None, "grpo": GRPO | {"steps": 1, "rollouts": 4, "micro_batch": 2}}
"""Settings of a training that takes a second."""


def pool() -> WorkerPool:
    return WorkerPool(Worker.of(name, ScriptedModel(says)) for name, says in (("wrong", "41"), ("right", "42")))


def config(folder: Path, **changed: Any) -> TrainConfig:
    """Builds a configuration whose warm start has two plans with the wrong worker, and one with the right one."""
    folder.mkdir(parents=True, exist_ok=True)
    model, tasks, plans = folder / "model", folder / "tasks.jsonl", folder / "plans.jsonl"
    if not model.exists():
        random_model.make(model)
        tasks.write_text(f'{{"question": "{QUESTION}", "answer": "42", "scoring": "numeric"}}\n', encoding="utf-8")
        plans.write_text("".join(f"{plan.model_dump_json()}\n" for plan in _demonstrations()), encoding="utf-8")
    defaults: dict[str, Any] = {
        "model": str(model),
        "task": {"name": f"jsonl:{tasks}"},
        "pool": {"small": {}},
        "plan": {"examples": 0, "max_steps": 1, "max_tokens": 60},
        "curriculum": {"shuffle": False},
        "grpo": GRPO,
        "warm_start": {"plans": plans, "steps": 30, "batch": 8, "learning_rate": 1e-2},
        "keep": {"every": 2},
    }
    return TrainConfig.model_validate(defaults | changed)


def kill(home: Path, *, after: int, **changed: Any) -> None:
    """Trains in another process, and kills that after a number of steps."""
    reading, writing = os.pipe()
    training = start_fork(_train_aloud, home, changed, environment=os.environ, stdout=writing)
    os.close(writing)
    with os.fdopen(reading) as lines:
        for line in lines:
            if line == f"{after}\n":
                training.kill()
                break
    training.join()


def _train_aloud(home: Path, changed: dict[str, Any]) -> None:
    """Trains in a folder, and prints the number of each step."""
    train(config(home, **changed), home / "run", pool(), on_step=_print_step)


def _print_step(number: int, _metrics: StepMetrics) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def _demonstrations() -> list[Demonstration]:
    steps = [
        Step(subtask="Solve the problem.", worker="right"),
        Step(subtask="Solve the problem.", worker="wrong"),
        Step(subtask="Solve it.", worker="wrong"),
    ]
    return [Demonstration(question=QUESTION, workflow=Workflow(steps=(step,))) for step in steps]


def train_together(home: Path) -> None:
    """Trains for one step in a folder as one of several processes, and prints the size of their group."""
    record = train(config(home, **ONE_STEP), home / "run", pool())
    sys.stdout.write(json.dumps({"step": record.step, "processes": PartialState().num_processes}))
    sys.stdout.flush()
    PartialState().destroy_process_group()
