"""The directory of a training run: its configuration, checkpoints, logged plans and record."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import Field

from rl_conductor._internal.formatting import counted, dollars
from rl_conductor._internal.jsonl import read_lines, read_value, write_lines, write_value
from rl_conductor.errors import ConfigError
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.scoring import Sample
from rl_conductor.trace.setup import WorkerSetup
from rl_conductor.types import Dollars, Value
from rl_conductor_training.cut_off_replies import CutOffReplies
from rl_conductor_training.output_folder import LOCK_FILE
from rl_conductor_training.row_file import fingerprint
from rl_conductor_training.spending import describe_unanswered
from rl_conductor_training.train.config import TrainConfig
from rl_conductor_training.train.rewards.verdict import Verdict
from rl_conductor_training.train.rollouts.masked import MaskedPlans
from rl_conductor_training.train.rollouts.scoring import LoggedPlan

COMPLETE = "whole"
"""Name of the marker file that is written into a checkpoint last; without it, the save was interrupted."""
COMPARED = ("model", "card", "sampling", "instructions")
"""The fields of a worker on which its replies, the prompts or the rewards depend."""
CONFIG_FILE, QUESTIONS_FILE, WORKERS_FILE = "config.json", "questions.json", "workers.json"
SPENDING_FILE = "spending.json"
SETUP_FILES = (CONFIG_FILE, QUESTIONS_FILE, WORKERS_FILE, SPENDING_FILE, LOCK_FILE)
"""The files of a run before it has begun."""
EVALUATION_FILE = "evaluation.json"
"""Name of the evaluation in `best/`."""


class WarmStartState(Value):
    """The result of a finished warm start."""

    plans: int
    """Number of distinct demonstrations, all with right answers."""
    second_rounds: int = 0
    """Number of distinct demonstrations of second rounds."""
    source: str
    steps: int
    loss: float
    masked: MaskedPlans = MaskedPlans()
    """Sampled plans that could not be scored."""

    @property
    def text(self) -> str:
        """The warm start in words."""
        second = f" and {self.second_rounds} second rounds" if self.second_rounds else ""
        masked = f"; {self.masked.text}" if self.masked.reasons else ""
        return f"{self.steps} supervised steps on {self.plans} plans{second} ({self.source}){masked}"


class ValidationScore(Value):
    """The score of the policy on the validation questions after a step."""

    step: int
    """0 before the first step."""
    score: float
    """Mean score over the questions, of the plans sampled for each; a plan that can't be parsed has 0."""
    error: float | None
    """Standard error, clustered by group of questions; `None` for a single group."""
    valid: float
    """Share of valid plans."""
    questions: int
    left_out: int = 0
    """Number of further questions, for which no plan could be judged."""
    plans: int
    """Number of plans that could be judged."""
    usd: float
    tokens: int
    seconds: float

    @property
    def text(self) -> str:
        """The score and its standard error in words."""
        error = "" if self.error is None else f" ± {self.error:.3f}"
        return f"{self.score:.3f}{error} after step {self.step} (n = {self.questions})"


class Spending(Value):
    """Cost of the calls to workers, over all calls of a run; cached replies cost nothing."""

    usd: Dollars = Decimal(0)
    tokens: int = 0
    calls: int = 0
    is_lower_bound: bool = False
    """Whether the price of a worker is unknown, so that `usd` leaves its calls out."""
    unanswered_usd: Dollars = Decimal(0)
    """The part of `usd` that is the upper bound of calls that failed: the vendor may bill them."""
    unanswered_tokens: int = 0
    """The same part of `tokens`."""

    @property
    def text(self) -> str:
        """The cost in words."""
        usd = f"at least {dollars(self.usd)} (a price is unknown)" if self.is_lower_bound else dollars(self.usd)
        spending = f"{usd}, {self.tokens:,} tokens, {counted(self.calls, 'call')}, without cached replies"
        return spending + describe_unanswered(self.unanswered_usd, self.unanswered_tokens)


class QuestionHashes(Value):
    """Hashes of the questions of a run, with their scoring."""

    task: str
    validation: str

    @classmethod
    def of(cls, task: Iterable[Sample], validation: Iterable[Sample]) -> QuestionHashes:
        """Hashes the questions of the task and of the validation."""
        return cls(task=_hash_samples(task), validation=_hash_samples(validation))


class RunWorkers(Value):
    """The workers of a run, in the order of their numbers."""

    workers: tuple[WorkerSetup, ...]
    options: dict[str, str] = Field(default_factory=dict)
    """Hashes of the options of their models by worker; empty for the small pool."""

    @classmethod
    def of(cls, pool: WorkerPool, options: Mapping[str, str]) -> RunWorkers:
        """Records the workers of a pool; of their options, which may hold a key, only hashes."""
        return cls(workers=pool.setups, options={name: fingerprint(text) for name, text in options.items()})

    def changes_since(self, previous: RunWorkers) -> list[str]:
        """Describes the differences from the workers of an earlier call of the run."""
        before, now = ({setup.card.name: setup for setup in each.workers} for each in (previous, self))
        changes = [f"{name!r} is missing" for name in before if name not in now]
        changes += [f"{name!r} is new" for name in now if name not in before]
        for name in (name for name in now if name in before):
            fields = [field for field in COMPARED if getattr(before[name], field) != getattr(now[name], field)]
            fields += ["set of options"] if previous.options.get(name) != self.options.get(name) else []
            changes += [f"{name!r} has another {' and '.join(fields)}"] if fields else []
        if not changes and list(before) != list(now):
            changes.append(f"their order was {', '.join(before)}")
        return changes


class StepRow(Value):
    """A line of `metrics.jsonl`."""

    step: int
    metrics: dict[str, float]


class RunRecord(Value):
    """A summary of a run, with the versions and the machine that produced it."""

    config: dict[str, Any]
    versions: dict[str, str]
    machine: str
    warm_start: WarmStartState | None = None
    step: int = 0
    seconds: float = 0.0
    """Duration of this call; a run may take several."""
    totals: dict[str, float] = Field(default_factory=dict)
    """Usage of the workers over all steps: `usd`, `tokens`, `calls`."""
    spending: Spending = Spending()
    masked: MaskedPlans = MaskedPlans()
    """Plans of this call that could not be scored, those of the warm start and of validation included."""
    cut_off: tuple[CutOffReplies, ...] = ()
    """The workers with replies in this call that were cut off."""
    verdict: Verdict | None = None
    validation: tuple[ValidationScore, ...] = ()
    """The evaluations on the validation questions, by step."""
    best: ValidationScore | None = None
    """The evaluation of the model in `best/`."""
    stopped: str = ""
    """Why the call ended before the last step, if a cap or Ctrl-C did it."""
    saved_at: datetime = Field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True)
class RunDir:
    """Paths of a run's files, and methods to read and write them."""

    path: Path

    @classmethod
    def open(cls, path: Path, config: TrainConfig) -> RunDir:
        """Opens the directory of a new or interrupted run with this configuration.

        Raises:
            ConfigError: the directory can't be written to, its `config.json` differs from `config` or can't be read.
        """
        run_dir = cls(path)
        run_dir.ensure_same_config(config)
        write_value(run_dir._config, config)
        return run_dir

    @property
    def has_begun(self) -> bool:
        """Whether a worker was called or a model trained; until then, settings, workers and questions may change."""
        return self.read_spending().calls > 0 or any(file.name not in SETUP_FILES for file in self.path.iterdir())

    def ensure_same_config(self, config: TrainConfig) -> None:
        """Checks that a run that has begun here has this configuration.

        Raises:
            ConfigError: it has not.
        """
        if not self._config.exists() or not self.has_begun:
            return
        previous = read_value(self._config, TrainConfig)
        compared = [name for name in TrainConfig.model_fields if name != "keep"]  # it does not affect the result
        changed = [name for name in compared if getattr(previous, name) != getattr(config, name)]
        if changed:
            raise ConfigError(
                f"{str(self.path)!r} has a run with other settings of {', '.join(changed)}: a run resumes only with"
                " unchanged settings. Pass another folder with --out, or remove this one"
            )

    def ensure_same_workers(self, pool: WorkerPool, options: Mapping[str, str]) -> None:
        """Checks that a run that has begun here has these workers, in the same order.

        Args:
            pool: the workers.
            options: the options of their models, as of `PoolSource.reply_options`.

        Raises:
            ConfigError: it has not.
        """
        if not self._workers.exists() or not self.has_begun:
            return
        if changes := RunWorkers.of(pool, options).changes_since(read_value(self._workers, RunWorkers)):
            raise ConfigError(
                f"{str(self.path)!r} has a run with other workers: {', '.join(changes)}. A run resumes only with the"
                " same; restore them, or pass another folder with --out"
            )

    def ensure_same_questions(self, task: Sequence[Sample], validation: Sequence[Sample]) -> None:
        """Checks that a run that has begun here has these questions.

        Raises:
            ConfigError: it has not.
        """
        if not self._questions.exists() or not self.has_begun:
            return
        if read_value(self._questions, QuestionHashes) != QuestionHashes.of(task, validation):
            raise ConfigError(
                f"{str(self.path)!r} has a run with other questions or another scoring of them: a run resumes only with"
                " the same. Restore them, or pass another folder with --out"
            )

    def write_workers(self, pool: WorkerPool, options: Mapping[str, str]) -> None:
        """Writes the workers and their options, which the next call must have too."""
        write_value(self._workers, RunWorkers.of(pool, options))

    def write_questions(self, task: Sequence[Sample], validation: Sequence[Sample]) -> None:
        """Writes the hashes of the questions, which the next call must have too."""
        write_value(self._questions, QuestionHashes.of(task, validation))

    @property
    def warm_start(self) -> Path:
        """The folder of the warm-started model and the demonstrations it was trained on."""
        return self.path / "warm_start"

    @property
    def final(self) -> Path:
        """The folder of the trained model, or its adapter, and its tokenizer."""
        return self.path / "final"

    @property
    def best(self) -> Path:
        """The folder of the model with the best validation score."""
        return self.path / "best"

    @property
    def unfinished_best(self) -> Path:
        """The folder that a new best model is saved to before it replaces the previous one."""
        return self.path / "best.new"

    @property
    def report(self) -> Path:
        """The page with the curves of the run."""
        return self.path / "report.html"

    def latest_checkpoint(self) -> Path | None:
        """Finds the latest complete checkpoint of the GRPO steps."""
        return latest_complete_checkpoint(self.path)

    def write_plans(self, step: int, plans: Sequence[LoggedPlan]) -> None:
        """Writes the plans of a step; a repeated step overwrites its file."""
        write_lines(self.path / "plans" / f"{step:05}.jsonl", plans)

    def write_metrics(self, steps: Mapping[int, Mapping[str, float]]) -> None:
        """Replaces the metrics of all steps, one per line."""
        write_lines(self.path / "metrics.jsonl", [StepRow(step=step, metrics=dict(row)) for step, row in steps.items()])

    def read_evaluations(self) -> list[ValidationScore]:
        """Reads the evaluations on the validation questions."""
        return read_lines(self._evaluations, ValidationScore) if self._evaluations.exists() else []

    def write_evaluation(self, evaluation: ValidationScore) -> None:
        """Adds an evaluation; those of later steps are of a lost continuation, and are dropped."""
        earlier = [other for other in self.read_evaluations() if other.step < evaluation.step]
        write_lines(self._evaluations, [*earlier, evaluation])

    def read_best(self) -> ValidationScore | None:
        """Reads the evaluation of the model in `best/`."""
        file = self.best / EVALUATION_FILE
        return read_value(file, ValidationScore) if file.exists() else None

    def replace_best(self, evaluation: ValidationScore) -> None:
        """Replaces `best/` by the model in `unfinished_best`."""
        write_value(self.unfinished_best / EVALUATION_FILE, evaluation)
        shutil.rmtree(self.best, ignore_errors=True)
        self.unfinished_best.rename(self.best)

    def read_spending(self) -> Spending:
        """Reads the spending of the run so far."""
        return read_value(self._spending, Spending) if self._spending.exists() else Spending()

    def write_spending(self, spending: Spending) -> None:
        """Replaces the spending of the run so far."""
        write_value(self._spending, spending)

    def read_record(self) -> RunRecord | None:
        """Reads the record; `None` before the first call has ended."""
        return read_value(self._record, RunRecord) if self._record.exists() else None

    def write_record(self, record: RunRecord) -> None:
        """Replaces the record of the run."""
        write_value(self._record, record)

    @property
    def _config(self) -> Path:
        return self.path / CONFIG_FILE

    @property
    def _workers(self) -> Path:
        return self.path / WORKERS_FILE

    @property
    def _questions(self) -> Path:
        return self.path / QUESTIONS_FILE

    @property
    def _evaluations(self) -> Path:
        return self.path / "validation.jsonl"

    @property
    def _spending(self) -> Path:
        return self.path / SPENDING_FILE

    @property
    def _record(self) -> Path:
        return self.path / "record.json"


def _hash_samples(samples: Iterable[Sample]) -> str:
    return fingerprint("\n".join(sample.model_dump_json(exclude_defaults=True) for sample in samples))


def latest_complete_checkpoint(path: Path) -> Path | None:
    """Finds the `checkpoint-N` folder in `path` with the highest N that has the `COMPLETE` marker."""
    complete = [folder for folder in path.glob("checkpoint-*") if (folder / COMPLETE).exists()]
    return max(complete, key=lambda folder: int(folder.name.partition("-")[2]), default=None)
