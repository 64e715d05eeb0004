"""A step that several processes share: returns the rewards of this process's rows and the step's metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from accelerate import PartialState

from rl_conductor import ScriptedModel, WorkerPool
from rl_conductor.scoring import Sample
from rl_conductor_training.train.config import PlanSettings, TrainConfig
from rl_conductor_training.train.policy.sampling import SampledPlan
from rl_conductor_training.train.prompt_instances import PromptInstance
from rl_conductor_training.train.rewards.reward_fn import RewardFunction
from rl_conductor_training.train.rollouts.rollout_fn import Rollout
from rl_conductor_training.train.rollouts.scoring import LoggedPlan
from train_scored_plans import INVALID, scored_plan

CONFIG = {"model": "m", "task": {"name": "composite:train"}, "pool": {"small": {}}, "reward": {"cost_bonus": 0.2}}
GROUP = [scored_plan(1.0, usd="0.03"), INVALID, scored_plan(1.0, usd="0.01"), scored_plan(1.0, usd="0.02")]
"""The plans for one question."""


def step() -> dict[str, Any]:
    state = PartialState(cpu=True)
    size = len(GROUP) // state.num_processes
    own = GROUP[state.process_index * size :][:size]
    instance = PromptInstance(Sample(id="1", question="?"), WorkerPool({"a": ScriptedModel("x")}), PlanSettings())
    logged_plans: list[LoggedPlan] = []
    logged: dict[str, float] = {}
    reward = RewardFunction(
        TrainConfig.model_validate(CONFIG), [instance], {}, log_plans=lambda _, plans: logged_plans.extend(plans)
    )
    rewards = reward(
        rollouts=[Rollout(instance, [], SampledPlan([], None), plan) for plan in own],
        trainer_state=SimpleNamespace(global_step=0, is_world_process_zero=state.is_main_process),
        log_metric=logged.__setitem__,
    )
    return {"rewards": rewards, "kept": len(logged_plans), "usd": logged["plans/usd"], "calls": logged["plans/calls"]}
