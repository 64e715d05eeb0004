"""The prompt instances of a training file as tasks, with the prompts of serving and the rewards of executed plans."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import verifiers.v1 as vf

from rl_conductor.errors import ConfigError
from rl_conductor.types import Message
from rl_conductor_training.train.config import read_config
from rl_conductor_training.train.pools import open_pool
from rl_conductor_training.train.prompt_instances import PromptInstance
from rl_conductor_training.train.rewards.compute import group_rewards
from rl_conductor_training.train.rollouts.scoring import ScoredPlan
from rl_conductor_training.train.setup import TrainingSetup

MESSAGE_TYPES = {"user": vf.UserMessage, "assistant": vf.AssistantMessage}


class PlanTaskConfig(vf.TaskConfig):  # type: ignore[misc, unused-ignore]
    """The training file by which plans are scored."""

    recipe: Path | None = None
    """A file for `rl-conductor train`. `[task]`, `[pool]`, `[plan]`, `[curriculum]`, `[reward]` and the seed are used;
    the model and the algorithm are the trainer's."""


class ConductorConfig(vf.TasksetConfig):  # type: ignore[misc, unused-ignore]
    """The options of `ConductorTaskset`."""

    task: PlanTaskConfig = PlanTaskConfig()
    size: int | None = None
    """Number of prompt instances; each question once when left out. They are the first of `rl-conductor train`."""


class PlanData(vf.TaskData):  # type: ignore[misc, unused-ignore]
    """The prompt of a task."""

    number: int
    """Index of the prompt instance in the order of training, from 0."""


class PlanTask(vf.Task[PlanData, vf.State, PlanTaskConfig]):  # type: ignore[misc, unused-ignore]
    """One question, for which the policy writes a plan."""

    @vf.reward  # type: ignore[untyped-decorator, unused-ignore]
    async def plan(self, trace: vf.Trace) -> float:
        """Executes the plan and computes its reward, as `train.rewards` does.

        Raises:
            RuntimeError: a call to a worker failed, so that the plan can't be scored: the rollout counts as failed.
        """
        setup = load_setup(self.config.recipe)
        instance = _prompt_instance(self.config.recipe, self.data.number)
        scored = await setup.rollout_scorer.score_plan(instance, trace.last_reply)
        trace.record_metrics(_metrics(scored))
        [reward] = group_rewards([scored], setup.config.reward)
        if reward is None:
            raise RuntimeError(scored.explanation)
        return reward


class ConductorTaskset(vf.Taskset[PlanTask, ConductorConfig]):  # type: ignore[misc, unused-ignore]
    """The prompt instances of a training file."""

    def load(self) -> Iterator[PlanTask]:
        """Yields a task for each prompt instance.

        Raises:
            ConfigError: the training file is missing, or can't be used here.
        """
        setup = load_setup(self.config.task.recipe)
        for number in range(len(setup.task.samples) if self.config.size is None else self.config.size):
            yield PlanTask(_task_data(_prompt_instance(self.config.task.recipe, number)), self.config.task)


@cache
def load_setup(recipe: Path | None) -> TrainingSetup:
    """Loads a training file and opens its workers, until the process ends.

    Raises:
        ConfigError: see `ConductorTaskset.load`.
    """
    if recipe is None:
        raise ConfigError("name a training file: --env.taskset.task.recipe FILE.toml")
    config = read_config(recipe)
    if config.reward.cost_bonus:
        raise ConfigError(
            f"{str(recipe)!r}: reward.cost_bonus compares the answers of a group, but here each is scored alone; "
            "write cost_bonus = 0"
        )
    if config.recursion:
        raise ConfigError(f"{str(recipe)!r}: here a plan is written in a single turn; remove [recursion]")
    exit_stack = ExitStack()
    atexit.register(exit_stack.close)
    return TrainingSetup(config, exit_stack.enter_context(open_pool(config.pool, recipe.with_name("replies.sqlite"))))


def _prompt_instance(recipe: Path | None, number: int) -> PromptInstance:
    epoch_size = len(load_setup(recipe).task.samples)
    return _prompt_instances(recipe, number // epoch_size + 1)[number]


@cache
def _prompt_instances(recipe: Path | None, epochs: int) -> list[PromptInstance]:
    setup = load_setup(recipe)
    return setup.prompt_instances(epochs * len(setup.task.samples))


def _task_data(instance: PromptInstance) -> PlanData:
    system = "\n\n".join(message.text for message in instance.messages if message.role == "system")
    messages = [_convert_message(message) for message in instance.messages if message.role != "system"]
    return PlanData(id=instance.sample.id, number=instance.index, system_prompt=system or None, prompt=messages)


def _convert_message(message: Message) -> vf.Message:
    return MESSAGE_TYPES[message.role](content=message.text)


def _metrics(scored: ScoredPlan) -> dict[str, float]:
    steps = scored.workflow.steps if scored.workflow else ()
    return {
        "valid": float(scored.valid),
        "right": float(scored.right),
        "steps": float(len(steps)),
        "workers": float(len({step.worker for step in steps})),
        "usd": float(scored.usage.cost),
        "tokens": float(scored.usage.total_tokens),
    }
