from __future__ import annotations

from typing import Any

import pytest

from rl_conductor import ConfigError, ScriptedModel, WorkerPool
from rl_conductor_training.train.config import TrainConfig
from rl_conductor_training.train.setup import TrainingSetup

POOL = WorkerPool({"reader": ScriptedModel("x"), "coder": ScriptedModel("x")})
LEAST: dict[str, Any] = {"model": "m", "task": {"name": "composite:train"}, "pool": {"small": {}}}


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (
            {"curriculum": {"cards": {"codr": ["counts"]}}},
            "curriculum.cards names codr, but the pool has reader, coder",
        ),
        ({"warm_start": {"thoughts": {"reader": "read"}}}, "warm_start.thoughts has no entry for coder"),
        (
            {"warm_start": {"thoughts": {"reader": "read", "coder": "count", "writer": "write"}}},
            "warm_start.thoughts names writer, but the pool has",
        ),
    ],
)
def test_tables_by_worker_name_the_workers_of_the_pool(table: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        TrainingSetup(TrainConfig.model_validate(LEAST | table), POOL)


def test_wordings_and_thoughts_are_optional() -> None:
    TrainingSetup(
        TrainConfig.model_validate(LEAST | {"curriculum": {"cards": {"coder": ["counts"]}}, "warm_start": {}}), POOL
    )
