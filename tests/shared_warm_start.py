"""A warm start that several processes share: returns how many plans this process executed and learns from."""

from __future__ import annotations

from pathlib import Path

from accelerate import PartialState

import random_model
from rl_conductor import ScriptedModel, WorkerPool
from rl_conductor_training.train.config import TrainConfig
from rl_conductor_training.train.run_dir import RunDir
from rl_conductor_training.train.setup import TrainingSetup
from rl_conductor_training.train.warm_start.sft import run_warm_start


def warm_start(home: Path) -> dict[str, int]:
    state = PartialState(cpu=True)
    with state.main_process_first():
        if state.is_main_process:
            random_model.make(home / "model")
            (home / "tasks.jsonl").write_text('{"question": "What is 6 * 7?", "answer": "42"}\n', encoding="utf-8")
    config = TrainConfig.model_validate(
        {
            "model": str(home / "model"),
            "task": {"name": f"jsonl:{home / 'tasks.jsonl'}"},
            "pool": {"small": {}},
            "plan": {"examples": 0, "max_steps": 1, "max_tokens": 60},
            "warm_start": {"draw": "space", "questions": 1, "samples": 4, "steps": 1, "batch": 1},
        }
    )
    worker = ScriptedModel("42")
    assert config.warm_start is not None
    state = run_warm_start(TrainingSetup(config, WorkerPool({"a": worker})), config.warm_start, RunDir(home / "run"))
    return {"asked": len(worker.requests), "plans": state.plans}
