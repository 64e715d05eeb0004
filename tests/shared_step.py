"""One of several processes that share a step: rewards its own rows, and prints what it makes of the step, as JSON."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

from accelerate import PartialState

from rl_conductor import ScriptedModel, WorkerPool
from rl_conductor.tasks.base import Sample
from rl_conductor.train.config import PlanEntry, TrainConfig
from rl_conductor.train.drawing import Written
from rl_conductor.train.exercises import Exercise
from rl_conductor.train.outcomes import Drawn
from rl_conductor.train.rewarding import Reward
from rl_conductor.train.rollouts import Played
from train_outcomes import INVALID, outcome

CONFIG = {"model": "m", "task": {"name": "composite:train"}, "pool": {"small": {}}, "reward": {"thrift": 0.2}}
GROUP = [outcome(1.0, usd="0.03"), INVALID, outcome(1.0, usd="0.01"), outcome(1.0, usd="0.02")]
"""The plans for one question."""


def step() -> dict[str, Any]:
    state = PartialState(cpu=True)
    size = len(GROUP) // state.num_processes
    own = GROUP[state.process_index * size :][:size]
    one = Exercise(Sample(id="1", question="?"), WorkerPool({"a": ScriptedModel("x")}), PlanEntry())
    kept: list[Drawn] = []
    logged: dict[str, float] = {}
    reward = Reward(TrainConfig.model_validate(CONFIG), [one], {}, told=lambda _, drawn: kept.extend(drawn))
    rewards = reward(
        played=[Played(one, [], Written([], None), each) for each in own],
        trainer_state=SimpleNamespace(global_step=0, is_world_process_zero=state.is_main_process),
        log_metric=logged.__setitem__,
    )
    return {"rewards": rewards, "kept": len(kept), "usd": logged["plans/usd"], "calls": logged["plans/calls"]}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(step()))
    PartialState().destroy_process_group()
