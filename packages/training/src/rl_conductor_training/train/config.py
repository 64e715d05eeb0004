"""The schema of a training file: `TrainConfig`, read from TOML. Imports neither torch nor TRL."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rl_conductor._internal.toml import read_toml
from rl_conductor.errors import ConfigError
from rl_conductor.plan_text.forms import Form
from rl_conductor.pool.pool_file import PlannerSettings
from rl_conductor.types import Roster, Wording
from rl_conductor_training.tasks import TaskEntry
from rl_conductor_training.workers.pool_settings import EMBEDDED_PREFIX, PoolSource

Schedule = Literal["cosine", "linear", "constant_with_warmup"]
"""The shape of the learning rate after its warmup."""

ROUNDING_TOLERANCE = 0.01
"""Maximum distance from a whole number of questions, so that a share of 0.333 of 3 counts as 1."""

ALL_LINEAR = "all-linear"
"""peft's name of all linear layers but the last."""


class Reporter(StrEnum):
    """An experiment tracker, by the name of its package."""

    TRACKIO = "trackio"
    WANDB = "wandb"
    TENSORBOARD = "tensorboard"


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TrainPoolSettings(PoolSource):
    """The workers: `[pool]`, with one of `file`, `workers` and `small`."""

    remember: bool = True
    """Cache every reply on disk, so that a run can be repeated for free."""


class PlanSettings(PlannerSettings):
    """The prompt and form of plans: `[plan]`. Serve the trained model with the same settings."""

    form: Form = "lists"
    """The form of plans: `lists`, `rows` or `object`."""
    roster: Roster = "anonymous"
    """How the pool is described: names would identify the workers in spite of `curriculum.shuffle`."""
    wording: Wording = "full"
    """Wording of the prompt with the roster `cards`; the others have the full one only."""
    context: int | None = Field(default=None, ge=1)
    """Context in tokens of the model where it is served, if it is known there, as with llama.cpp: the prompt leaves out
    as much of a long question as it does there."""
    max_steps: int = Field(default=5, ge=1)
    """Maximum steps of a plan."""
    grammar: bool = True
    """Constrain sampling to valid plans, and compute the loss for that distribution."""


class CurriculumSettings(_Settings):
    """The workers of each question's pool: `[curriculum]`."""

    workers: int | None = Field(default=None, ge=1)
    """Number of workers sampled from the pool for each question; all when left out."""
    shuffle: bool = True
    """Renumber the workers for each question, so that only their cards identify them."""
    cards: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """By worker, alternative wordings of its strengths: each question samples one of these or the card's own, so that
    the policy reads cards instead of memorizing them."""


class RewardSettings(_Settings):
    """The reward of a plan: `[reward]`."""

    kind: Literal["paper", "supplement"] = "paper"
    """Rewards of an invalid, a wrong and a right plan: 0, 0.5 and 1 with `paper`, 0, 0.5 and 1.5 with `supplement`."""
    cost_bonus: float = Field(default=0.0, ge=0)
    """Maximum bonus of a right answer for being cheaper than the other right ones of its group."""
    cost_metric: Literal["usd", "tokens", "seconds"] = "usd"
    """The cost that the bonus compares."""


class RecursionSettings(_Settings):
    """A second round for some questions, which revises or accepts the first answer: `[recursion]`."""

    share: float = Field(default=0.5, gt=0, le=1)
    """Share of a step's questions that get a second round."""
    discount: float = Field(default=0.25, ge=0, le=1)
    """Weight of the second round in the reward of the first."""


class GrpoSettings(_Settings):
    """The hyper-parameters: `[grpo]`. The defaults are the paper's."""

    steps: int = Field(default=200, ge=1)
    """Number of updates of the model; the learning rate schedule spans all of them."""
    questions: int = Field(default=4, ge=1)
    """Questions per step."""
    rollouts: int = Field(default=64, ge=2)
    """Plans per question and round: the size of a group; TRL's `num_generations`."""
    micro_batch: int | None = Field(default=None, ge=1)
    """Plans per forward and backward pass on each device; the largest divisor of a device's plans up to 8 when left
    out. It affects only memory and time, except with `loss = "bnpo"`. TRL's `per_device_train_batch_size`."""
    learning_rate: float = Field(default=1e-6, gt=0)
    """The learning rate after `warmup`."""
    warmup: float = Field(default=0.03, ge=0, le=1)
    """Share of the steps over which the learning rate rises."""
    schedule: Schedule = "cosine"
    """The shape of the learning rate after `warmup`: `cosine`, `linear` or `constant_with_warmup`."""
    temperature: float = Field(default=1.0, gt=0)
    """Temperature at which plans are sampled."""
    loss_chunk: int | None = Field(default=None, ge=1)
    """Tokens whose logits are in memory at the same time in the loss; all of a micro-batch when left out."""
    clip: float = Field(default=0.2, gt=0)
    """Maximum change of a token's probability ratio that a step is rewarded for; TRL's `epsilon`."""
    kl: float = Field(default=0.0, ge=0)
    """Weight of the divergence from the model before training; TRL's `beta`."""
    loss: Literal["bnpo", "dr_grpo", "dapo", "grpo"] = "bnpo"
    """`bnpo` divides by the tokens of a pass, so that the tokens of a pass with short plans weigh more; `dapo` by those
    of the whole step, which is `bnpo` with all plans of a step in one pass. TRL's `loss_type`, whose default is
    `dapo`."""
    scale: Literal["group", "batch", "none"] = "group"
    """The rewards whose standard deviation advantages are divided by; TRL's `scale_rewards`."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of the optimizer."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Norm to which gradients are clipped."""


class LoraSettings(_Settings):
    """Trains a low-rank adapter instead of all weights: `[lora]`."""

    rank: int = Field(default=16, ge=1)
    """Rank of the adapter's matrices: more are a larger adapter."""
    alpha: float = Field(default=32.0, gt=0)
    """Scale of the adapter, relative to `rank`."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout within the adapter."""
    targets: str | list[str] = ALL_LINEAR
    """Names of the modules that get an adapter."""


class WarmStartSettings(_Settings):
    """Supervised fine-tuning on plans with right answers, before the first GRPO step: `[warm_start]`."""

    plans: Path | None = None
    """A JSON Lines file of demonstrations; when left out, plans are sampled and the right ones selected."""
    draw: Literal["space", "model"] = "space"
    """The source of sampled plans: uniformly from the plan space, or from the model under the grammar."""
    samples: int = Field(default=8, ge=1)
    """Plans sampled per question."""
    subtasks: tuple[str, ...] = ("Answer the question.",)
    """The subtasks of plans sampled from the plan space."""
    questions: int = Field(default=32, ge=1)
    """Questions for which plans are sampled."""
    second_rounds: int = Field(default=0, ge=0)
    """Number of wrong first plans per question that a second round learns to revise; it also learns to accept right
    ones. With 0, only first rounds are learned."""
    task: TaskEntry | None = None
    """The task of the demonstrations' questions, to score their answers for second rounds: `[warm_start.task]`; by
    default `[task]`."""
    roles: dict[str, str] = Field(default_factory=dict)
    """By worker, its role in a word or two; each plan then begins with the roles and the workers it needs."""
    steps: int = Field(default=30, ge=1)
    """Number of supervised updates of the model."""
    batch: int = Field(default=8, ge=1)
    """Plans per update."""
    learning_rate: float = Field(default=3e-5, gt=0)
    """The learning rate of the supervised steps."""
    schedule: Schedule = "cosine"
    """With `constant_with_warmup`, the checkpoints of this warm start are also the results of shorter ones."""


class VllmSettings(_Settings):
    """Samples plans with vLLM instead of transformers: `[vllm]`."""

    mode: Literal["colocate", "server"] = "colocate"
    """Runs vLLM in the process of the training, or uses a server of its own."""
    memory: float = Field(default=0.3, gt=0, lt=1)
    """Share of a GPU's memory, when colocated."""
    tensor_parallel: int = Field(default=1, ge=1)
    """GPUs that the model is split over, when colocated."""
    server: str | None = None
    """Base URL of `trl vllm-serve`, such as `http://127.0.0.1:8000`."""
    sleep: bool = False
    """Free vLLM's memory during the update of the model, when colocated; each sampling then copies the weights."""
    context_length: int | None = Field(default=None, ge=1)
    """Maximum tokens of prompt and plan, when colocated; the model's by default, which may need too much memory."""


class ValidationSettings(_Settings):
    """Evaluates the policy during training, and keeps the best model: `[validation]`."""

    task: TaskEntry
    """The validation questions: `[validation.task]`; none may be a training question."""
    every: int = Field(default=10, ge=1)
    """Steps between evaluations; the first is before training and the last after the last step."""
    rollouts: int = Field(default=4, ge=1)
    """Plans sampled per question."""


class CheckpointSettings(_Settings):
    """Checkpoints and experiment tracking: `[keep]`."""

    every: int = Field(default=10, ge=1)
    """Steps between checkpoints."""
    checkpoints: int = Field(default=2, ge=1)
    """Number of the latest checkpoints that are kept."""
    report_to: tuple[Reporter, ...] = ()
    """Trackers that each step is logged to: `trackio`, `wandb`, `tensorboard`. `--report-to` overrides them."""


class TrainConfig(_Settings):
    """A training file. Relative paths are resolved against the file, except those in a worker's `options`."""

    model: str
    """A folder, a name on the hub, or `embedded:NAME`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """The precision of computation. Without `[lora]`, the weights themselves are always float32."""
    gradient_checkpointing: bool = False
    """Halves the memory at the cost of about a fifth more time."""
    seed: int = Field(default=0, ge=0)
    """Seed of everything that is random; `--seed` of the command replaces it."""
    task: TaskEntry
    """The source of the questions: `[task]`."""
    pool: TrainPoolSettings
    concurrency: int = Field(default=64, ge=1)
    """Maximum number of plans that are executed at the same time."""
    plan: PlanSettings = PlanSettings()
    curriculum: CurriculumSettings = CurriculumSettings()
    reward: RewardSettings = RewardSettings()
    recursion: RecursionSettings | None = None
    grpo: GrpoSettings = GrpoSettings()
    lora: LoraSettings | None = None
    warm_start: WarmStartSettings | None = None
    vllm: VllmSettings | None = None
    validation: ValidationSettings | None = None
    references: Path | None = None
    """A JSON Lines file with the scores of the best single worker and of the oracle on each sample."""
    keep: CheckpointSettings = CheckpointSettings()

    @property
    def weight_dtype(self) -> Literal["float32", "bfloat16"]:
        """The precision of the stored weights. A training step is too small to change a weight of bfloat16."""
        return self.dtype if self.lora else "float32"

    @property
    def second_round_questions(self) -> int:
        """Number of questions per step that get a second round."""
        return round(self.recursion.share * self.grpo.questions) if self.recursion else 0

    @property
    def plans_per_step(self) -> int:
        """Number of plans per step, of both rounds."""
        return (self.grpo.questions + self.second_round_questions) * self.grpo.rollouts

    @model_validator(mode="after")
    def _share_gives_whole_questions(self) -> Self:
        if self.recursion is None:
            return self
        exact = self.recursion.share * self.grpo.questions
        if self.second_round_questions == 0 or abs(exact - self.second_round_questions) > ROUNDING_TOLERANCE:
            raise ValueError(
                f"recursion.share = {self.recursion.share:g} of grpo.questions = {self.grpo.questions} is {exact:g} "
                "questions per step, which must be a whole number of at least 1: change either"
            )
        return self

    @model_validator(mode="after")
    def _second_rounds_need_recursion(self) -> Self:
        if self.warm_start and self.warm_start.second_rounds and self.recursion is None:
            raise ValueError("warm_start.second_rounds needs [recursion], whose `share` is that of second rounds")
        return self

    @model_validator(mode="after")
    def _micro_batch_divides_plans(self) -> Self:
        size, plans = self.grpo.micro_batch, self.plans_per_step
        if size is not None and plans % size:
            rounds = " of both rounds" if self.recursion else ""
            raise ValueError(
                f"grpo.micro_batch = {size} must divide the {plans} plans per step{rounds}; write"
                f" {largest_divisor(plans, size)}, for example, or leave it out"
            )
        return self


def largest_divisor(number: int, limit: int) -> int:
    """Returns the largest divisor of `number` that is not above `limit`."""
    return next(size for size in range(limit, 0, -1) if number % size == 0)


def read_config(path: Path) -> TrainConfig:
    """Reads and validates a training file.

    Raises:
        ConfigError: no such file, not TOML, or a wrong key; the message names it.
    """
    config = read_toml(path, TrainConfig, "training file")
    resolved: dict[str, Any] = {
        "model": _resolve_model(path, config.model),
        "task": config.task.resolve_paths(path.parent),
        "references": _resolve(path, config.references),
    }
    resolved["pool"] = config.pool.model_copy(update={"file": _resolve(path, config.pool.file)})
    if config.warm_start:
        plans, task = _resolve(path, config.warm_start.plans), config.warm_start.task
        changes = {"plans": plans, "task": task and task.resolve_paths(path.parent)}
        resolved["warm_start"] = config.warm_start.model_copy(update=changes)
    if config.validation:
        validation_task = config.validation.task.resolve_paths(path.parent)
        resolved["validation"] = config.validation.model_copy(update={"task": validation_task})
    return config.model_copy(update=resolved)


def _resolve_model(config: Path, name: str) -> str:
    """Returns the path of a model's folder from the working directory; other names stay as they are."""
    folder = config.parent / Path(name).expanduser()
    if folder.is_dir():
        return str(folder)
    if name.startswith((".", "/", "~")):
        raise ConfigError(f"{str(config)!r} names the model {name!r}, but there is no folder {str(folder)!r}")
    if ":" in name and not name.startswith(EMBEDDED_PREFIX):
        raise ConfigError(f"the model {name!r} can't be trained: write a folder, a name on the hub, or embedded:NAME")
    return name


def _resolve(config: Path, path: Path | None) -> Path | None:
    if path is None:
        return None
    resolved = config.parent / path.expanduser()
    if not resolved.is_file():
        raise ConfigError(f"{str(config)!r} names {str(path)!r}, but there is no file {str(resolved)!r}")
    return resolved
