"""One of several processes that share a warm start: prints how many plans it had run, and what it learns from."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from accelerate import PartialState

import random_model
from rl_conductor import ScriptedModel, WorkerPool
from rl_conductor.train.config import TrainConfig
from rl_conductor.train.course import Course
from rl_conductor.train.folder import Folder
from rl_conductor.train.warm_start import warm_up


def warmed(home: Path) -> dict[str, int]:
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
    warmth = warm_up(Course(config, WorkerPool({"a": worker})), config.warm_start, Folder(home / "run"))
    return {"asked": len(worker.requests), "plans": warmth.plans}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(warmed(Path(sys.argv[1]))))
    PartialState().destroy_process_group()
