"""What a training file says: `TrainConfig`, read from TOML. Knows neither torch nor TRL."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rl_conductor.errors import ConfigError
from rl_conductor.plan import Form
from rl_conductor.pool import PlanManner
from rl_conductor.roster import Roster
from rl_conductor.tasks import TaskEntry
from rl_conductor.toml import read_toml
from rl_conductor.workers.source import PoolSource

Schedule = Literal["cosine", "linear", "constant_with_warmup"]
"""What becomes of the learning rate after it has risen."""

WHOLE = 0.01
"""How far from a whole number of questions a share may be, such as 0.333 of 3."""


class Reporter(StrEnum):
    """A program that draws curves, by the name of its package."""

    TRACKIO = "trackio"
    WANDB = "wandb"
    TENSORBOARD = "tensorboard"


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PoolEntry(PoolSource):
    """Who works: `[pool]`, with one of `file`, `workers` and `small`."""

    remember: bool = True
    """Whether every reply is kept on disk, so that a run can be repeated for free."""


class PlanEntry(PlanManner):
    """How plans are asked for: `[plan]`. Whoever serves the trained model must ask in the same way."""

    form: Form = "lists"
    roster: Roster = "anonymous"
    """How the pool is described: names would tell who is who, whatever `curriculum.shuffle` does."""
    max_steps: int = Field(default=5, ge=1)
    grammar: bool = True
    """Whether sampling is held to the plans that may run, and the loss computed for what is then drawn from."""


class Curriculum(_Entry):
    """Which workers there are for each question: `[curriculum]`."""

    workers: int | None = Field(default=None, ge=1)
    """How many of the pool are drawn for each question; all when left out."""
    shuffle: bool = True
    """Whether the workers get new numbers for each question, so that only their cards tell who they are."""
    cards: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """By worker, other wordings of what it is good at: each question draws one, or the card's own. So that cards are
    read, and not just known by heart."""


class RewardEntry(_Entry):
    """What a plan is worth: `[reward]`, as in `rewards`."""

    kind: Literal["paper", "supplement"] = "paper"
    thrift: float = Field(default=0.0, ge=0)
    """Most that a right answer gets on top for being cheaper than the other right ones of its group."""
    thrift_by: Literal["usd", "tokens", "seconds"] = "usd"


class Recursion(_Entry):
    """A second round for some questions, in which a plan and its answer are judged: `[recursion]`, as in `rewards`."""

    share: float = Field(default=0.5, gt=0, le=1)
    """Of the questions of an update, how many get one."""
    discount: float = Field(default=0.25, ge=0, le=1)
    """What the second round counts for in the reward of the first."""


class GrpoEntry(_Entry):
    """The algorithm's numbers: `[grpo]`. The defaults are the paper's."""

    steps: int = Field(default=200, ge=1)
    """Updates of the model; the learning rate is planned over all of them."""
    questions: int = Field(default=4, ge=1)
    """Questions an update."""
    rollouts: int = Field(default=64, ge=2)
    """Plans a question and round: a group."""
    micro_batch: int = Field(default=8, ge=1)
    """Plans a forward and backward pass, on each device; only memory and time depend on it."""
    learning_rate: float = Field(default=1e-6, gt=0)
    warmup: float = Field(default=0.03, ge=0, le=1)
    """Share of the steps over which the learning rate rises."""
    schedule: Schedule = "cosine"
    temperature: float = Field(default=1.0, gt=0)
    clip: float = Field(default=0.2, gt=0)
    kl: float = Field(default=0.0, ge=0)
    loss: Literal["bnpo", "dr_grpo", "dapo", "grpo"] = "bnpo"
    scale: Literal["group", "batch", "none"] = "group"
    """What advantages are divided by the spread of."""
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)


class LoraEntry(_Entry):
    """Train a small addition to the model instead of all of it: `[lora]`."""

    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    targets: str | list[str] = "all-linear"


class WarmStart(_Entry):
    """Supervised steps on plans that gave right answers, before the first update: `[warm_start]`."""

    plans: Path | None = None
    """A file of `KnownPlan`s, one a line; when left out, plans are drawn and those kept that are right."""
    draw: Literal["space", "model"] = "space"
    """Who writes the plans that are drawn: chance, from all that may be written; or the model, held to the grammar."""
    samples: int = Field(default=8, ge=1)
    """Plans drawn a question."""
    subtasks: tuple[str, ...] = ("Answer the question.",)
    """What chance writes as subtasks."""
    questions: int = Field(default=32, ge=1)
    """Questions that plans are drawn for."""
    thoughts: dict[str, str] = Field(default_factory=dict)
    """By worker, what it does in a word or two: then each plan begins with who does what, and who is needed."""
    steps: int = Field(default=30, ge=1)
    batch: int = Field(default=8, ge=1)
    learning_rate: float = Field(default=3e-5, gt=0)
    schedule: Schedule = "cosine"
    """`constant_with_warmup`: what a shorter warm start gives is what this one has on its way."""


class VllmEntry(_Entry):
    """Draw plans with vLLM instead of transformers: `[vllm]`."""

    mode: Literal["colocate", "server"] = "colocate"
    memory: float = Field(default=0.3, gt=0, lt=1)
    """Share of a GPU's memory, when colocated."""
    tensor_parallel: int = Field(default=1, ge=1)
    server: str | None = None
    """Base URL of `trl vllm-serve`, such as `http://127.0.0.1:8000`."""


class KeepEntry(_Entry):
    """What is kept and told: `[keep]`."""

    every: int = Field(default=10, ge=1)
    """Steps between checkpoints."""
    checkpoints: int = Field(default=2, ge=1)
    report_to: tuple[Reporter, ...] = ()
    """Where to report each step, too; `--report-to` names others."""


class TrainConfig(_Entry):
    """The whole file. Files that it names are relative to it, but for those in `options` of workers."""

    model: str
    """A folder, a name on the hub, or `embedded:NAME`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What is computed in."""
    gradient_checkpointing: bool = False
    """Half the memory for a fifth more time."""
    seed: int = Field(default=0, ge=0)
    task: TaskEntry
    """What is trained on: `[task]`."""
    pool: PoolEntry
    concurrency: int = Field(default=64, ge=1)
    """Most plans that are run at once."""
    plan: PlanEntry = PlanEntry()
    curriculum: Curriculum = Curriculum()
    reward: RewardEntry = RewardEntry()
    recursion: Recursion | None = None
    grpo: GrpoEntry = GrpoEntry()
    lora: LoraEntry | None = None
    warm_start: WarmStart | None = None
    vllm: VllmEntry | None = None
    references: Path | None = None
    """A file of `Reference`s, one a line: how well the best single worker and the oracle do on each sample."""
    keep: KeepEntry = KeepEntry()

    @property
    def weights(self) -> Literal["float32", "bfloat16"]:
        """What the model's weights are kept in: a step of training is too small to change one of bfloat16."""
        return self.dtype if self.lora else "float32"

    @property
    def judged(self) -> int:
        """How many questions of an update get a second round."""
        return round(self.recursion.share * self.grpo.questions) if self.recursion else 0

    @property
    def plans(self) -> int:
        """Plans an update, of both rounds."""
        return (self.grpo.questions + self.judged) * self.grpo.rollouts

    @model_validator(mode="after")
    def _questions_are_whole(self) -> Self:
        if self.recursion is None:
            return self
        asked = self.recursion.share * self.grpo.questions
        if self.judged == 0 or abs(asked - self.judged) > WHOLE:
            raise ValueError(
                f"recursion.share must give whole questions of a step, not {asked:g} of {self.grpo.questions}: "
                "change it or grpo.questions"
            )
        return self

    @model_validator(mode="after")
    def _plans_can_be_dealt_out(self) -> Self:
        if self.plans % self.grpo.micro_batch:
            rounds = " in both rounds" if self.recursion else ""
            raise ValueError(
                f"grpo.micro_batch must divide the {self.plans} plans of a step{rounds}, not be {self.grpo.micro_batch}"
            )
        return self


def read_config(path: Path) -> TrainConfig:
    """The checked content of a training file.

    Raises:
        ConfigError: no such file, not TOML, or a wrong key; the message names it.
    """
    config = read_toml(path, TrainConfig, "training file")
    changed: dict[str, Any] = {
        "task": config.task.beside(path.parent),
        "references": _beside(path, config.references),
    }
    changed["pool"] = config.pool.model_copy(update={"file": _beside(path, config.pool.file)})
    if config.warm_start:
        plans = _beside(path, config.warm_start.plans)
        changed["warm_start"] = config.warm_start.model_copy(update={"plans": plans})
    return config.model_copy(update=changed)


def _beside(config: Path, named: Path | None) -> Path | None:
    if named is None:
        return None
    found = config.parent / named.expanduser()
    if not found.is_file():
        raise ConfigError(f"{str(config)!r} names {str(named)!r}, but there is no file {str(found)!r}")
    return found
