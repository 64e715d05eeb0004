"""Trains a Conductor, from a configuration to a saved model; can be stopped and resumed at any step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from platform import machine, processor
from typing import Any

from rl_conductor._internal.jsonl import read_lines
from rl_conductor.calls.budget import NOTHING, Amount
from rl_conductor.errors import ConfigError
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.workflow.limits import Limits
from rl_conductor_training.cut_off_replies import add_counts, find_cut_off
from rl_conductor_training.output_folder import lock_folder
from rl_conductor_training.spending import CostEstimate, check_prices, unpriced_workers
from rl_conductor_training.train.budget import CapReachedError, TrainingBudget
from rl_conductor_training.train.config import TrainConfig
from rl_conductor_training.train.interruption import INTERRUPTED, Interruption
from rl_conductor_training.train.progress import Status, TrainProgress
from rl_conductor_training.train.prompt_instances import PromptInstance
from rl_conductor_training.train.report import write_report
from rl_conductor_training.train.rewards.metrics import Reference
from rl_conductor_training.train.rewards.verdict import compute_verdict
from rl_conductor_training.train.rollouts.batches import count_rounds
from rl_conductor_training.train.rollouts.masked import MaskedPlans, NothingScoredError
from rl_conductor_training.train.run_dir import RunDir, RunRecord, Spending, WarmStartState
from rl_conductor_training.train.setup import TrainingSetup, check_trackers

try:
    import torch
    from accelerate import PartialState
    from accelerate.utils import gather_object
    from datasets import Dataset
    from peft import PeftModel
    from transformers import PrinterCallback
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    from rl_conductor_training.train.policy.model_loading import LoadedModel, load_model, load_policy, lora_config
    from rl_conductor_training.train.prompt_lengths import check_prompts
    from rl_conductor_training.train.rewards.reward_fn import RewardFunction
    from rl_conductor_training.train.rollouts.grammars import compile_round_grammars
    from rl_conductor_training.train.rollouts.rollout_fn import RolloutFunction
    from rl_conductor_training.train.trainers.arguments import training_arguments
    from rl_conductor_training.train.trainers.callbacks import (
        CheckpointCallback,
        MetricsCallback,
        SpendingCallback,
        StepMetrics,
        StopCallback,
        parse_metrics,
    )
    from rl_conductor_training.train.trainers.conductor_trainer import ConductorTrainer
    from rl_conductor_training.train.validation import ValidationCallback, Validator
    from rl_conductor_training.train.warm_start.sft import run_warm_start
except ImportError as missing:
    raise ConfigError(f"training needs {missing.name}: pip install 'rl-conductor-training[train]'") from missing

PACKAGES = ("rl-conductor", "torch", "transformers", "trl", "peft", "accelerate", "xgrammar")
USAGE_METRICS = ("usd", "tokens", "calls")
PROCESS_TIMEOUT = timedelta(days=1)
"""Maximum wait for the process that samples demonstrations, or for one with slow workers."""
MASKED_WARNING = "All reward functions returned None"
"""The first words of TRL's warning about a masked plan, after a rank. It quotes the whole prompt."""


def train(
    config: TrainConfig,
    output: Path,
    pool: WorkerPool,
    *,
    last_step: int | None = None,
    limits: Limits | None = None,
    on_estimate: Callable[[CostEstimate], None] = lambda _estimate: None,
    on_step: Callable[[int, StepMetrics], None] = lambda _step, _metrics: None,
    on_status: Callable[[Status], None] = lambda _status: None,
) -> RunRecord:
    """Trains a Conductor, or resumes the run in `output`. Ctrl-C ends the call after the current step.

    Args:
        config: the training file's content.
        output: the run directory.
        pool: the workers, which are not trained; `pools.open_pool` opens those of the configuration.
        last_step: the step of the run after which this call ends; by default the last of `grpo.steps`.
        limits: hard caps: `usd` and `tokens` of the workers over all calls of the run, without cached replies, and
            `seconds` of this call. A step that does not fit is discarded, and the state before it saved.
        on_estimate: called before anything is spent, with the expected cost of the whole run.
        on_step: called after each step with its number, from 1, and its metrics.
        on_status: called with the progress between the metrics.

    Raises:
        ConfigError: the configuration, the workers or the questions do not fit the model, the task or the run
            directory, another process writes to it, a package is not installed, or a cap in dollars can't be enforced.
        NothingScoredError: calls failed in most plans of a step, and none has a score; the state before it is saved.
    """
    started_at, limits = time.monotonic(), Limits.or_default(limits, Limits())
    last_step = min(last_step or config.grpo.steps, config.grpo.steps)
    check_trackers(config.keep.report_to)
    check_prices(pool, limits)
    state = _join_processes()
    with _open_run_dir(output, config, state) as run_dir:
        record = run_dir.read_record()
        if record and record.step >= last_step and not _lacks_last_evaluation(record, config):
            return record
        previous = run_dir.read_spending()
        budget = TrainingBudget(limits, Amount(previous.usd, previous.tokens), share=state.num_processes)
        progress = TrainProgress(on_status if state.is_main_process else lambda _status: None)
        setup = TrainingSetup(config, pool, budget, progress)
        _load_questions(setup, run_dir, state)
        if state.is_main_process:
            on_estimate(setup.estimate())
        call = _Call(setup, run_dir, last_step, on_step, started_at, previous)
        record = call.run()
        if state.is_main_process:
            call.write(record)
        return record


def _join_processes() -> PartialState:
    """Returns the group of the processes that train together."""
    # Without a GPU, processes on one machine are a group only if it is said that they use the processor.
    return PartialState(cpu=not torch.cuda.is_available(), timeout=PROCESS_TIMEOUT)


@contextmanager
def _open_run_dir(output: Path, config: TrainConfig, state: PartialState) -> Iterator[RunDir]:
    """Opens the run directory in the main process, which keeps other runs out of it, before the others."""
    with lock_folder(output) if state.is_main_process else nullcontext():
        with state.main_process_first():
            run_dir = RunDir.open(output, config) if state.is_main_process else RunDir(output)
        yield run_dir


def _load_questions(setup: TrainingSetup, run_dir: RunDir, state: PartialState) -> None:
    """Loads the questions; a resumed run must have the same, and the same workers."""
    setup.progress.begin("loading the questions")
    options = setup.config.pool.reply_options
    with state.main_process_first():
        questions = setup.load_questions()
        run_dir.ensure_same_workers(setup.pool, options)
        run_dir.ensure_same_questions(*questions)
    if state.is_main_process:
        run_dir.write_workers(setup.pool, options)
        run_dir.write_questions(*questions)
        setup.warn_of_copies()


def _lacks_last_evaluation(record: RunRecord, config: TrainConfig) -> bool:
    """Returns whether a cap has prevented the evaluation after the last step of the run."""
    if config.validation is None or not record.stopped or record.step < config.grpo.steps:
        return False
    return all(row.step != record.step for row in record.validation)


@dataclass
class _Call:
    """One call of `train`, which begins or resumes a run."""

    setup: TrainingSetup
    run_dir: RunDir
    last_step: int
    on_step: Callable[[int, StepMetrics], None]
    started_at: float
    previous: Spending
    """The spending of earlier calls."""
    steps: dict[int, StepMetrics] = field(default_factory=dict)
    interruption: Interruption = field(default_factory=Interruption)

    def run(self) -> RunRecord:
        """Trains until the last step, or until a limit is reached, and saves the spending in any case."""
        config = self.setup.config
        warm_start = trainer = None
        is_capped = False
        try:
            if config.warm_start:
                warm_start = run_warm_start(self.setup, config.warm_start, self.run_dir, self._save_spending)
            trainer = self._load_trainer()
            self._take_steps(trainer)
        except CapReachedError:
            is_capped = True
        except BaseException:
            if PartialState().num_processes == 1:  # of several, the others may not have failed and wait elsewhere
                self._save_spending()
            raise
        if trainer is not None:
            trainer.save_model(str(self.run_dir.final))
            logs = [row for row in trainer.state.log_history if "loss" in row]
            self.steps = {row["step"]: parse_metrics(row) for row in logs}
        step = 0 if trainer is None else trainer.state.global_step
        return self._build_record(warm_start, step, self._reason_of_stop(step, is_capped=is_capped))

    def _reason_of_stop(self, step: int, *, is_capped: bool) -> str:
        if is_capped or self.setup.budget.is_over:
            return str(CapReachedError())
        return INTERRUPTED if self.interruption.is_requested and step < self.last_step else ""

    def _take_steps(self, trainer: ConductorTrainer) -> None:
        """Goes on from the latest checkpoint; a step that can't be finished leaves one of the state before it."""
        checkpoint = self.run_dir.latest_checkpoint()
        try:
            with self.interruption.watch():
                trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        except (CapReachedError, NothingScoredError):
            trainer.save_before_batch()
            raise

    def write(self, record: RunRecord) -> None:
        """Writes the record, the metrics and the report."""
        self.run_dir.write_spending(record.spending)
        self.run_dir.write_metrics(self.steps)
        self.run_dir.write_record(record)
        write_report(record, self.steps, self.run_dir.report)

    def _load_trainer(self) -> ConductorTrainer:
        progress = self.setup.progress
        progress.begin("loading the model")
        trainer = _build_trainer(self.setup, self.run_dir)
        trainer.add_callback(MetricsCallback(self.on_step))
        trainer.add_callback(StopCallback(self.last_step, self.interruption))
        trainer.add_callback(CheckpointCallback())
        trainer.add_callback(SpendingCallback(self._save_spending))
        return trainer

    def _save_spending(self) -> None:
        spending = self._spending()
        if PartialState().is_main_process:
            self.run_dir.write_spending(spending)

    def _spending(self) -> Spending:
        """Adds up the spending of all processes and of earlier calls."""
        previous, budget = self.previous, self.setup.budget
        spending, unanswered = (
            sum(gather_object([amount]), NOTHING) for amount in (budget.spending, budget.unanswered)
        )
        return Spending(
            usd=previous.usd + spending.usd,
            tokens=previous.tokens + spending.tokens,
            calls=previous.calls + spending.calls,
            is_lower_bound=bool(unpriced_workers(self.setup.pool)),
            unanswered_usd=previous.unanswered_usd + unanswered.usd,
            unanswered_tokens=previous.unanswered_tokens + unanswered.tokens,
        )

    def _build_record(self, warm_start: WarmStartState | None, step: int, stopped: str) -> RunRecord:
        metrics = list(self.steps.values())
        return RunRecord(
            config=self.setup.config.model_dump(mode="json"),
            versions={name: version(name) for name in PACKAGES},
            machine=_machine(),
            warm_start=warm_start,
            step=step,
            seconds=time.monotonic() - self.started_at,
            totals={name: sum(row.get(name, 0.0) for row in metrics) for name in USAGE_METRICS},
            spending=self._spending(),
            masked=MaskedPlans.of(gather_object(self.setup.masked_reasons)),
            cut_off=find_cut_off(gather_object([add_counts(self.setup.finishes)])),
            verdict=compute_verdict(metrics),
            validation=tuple(row for row in self.run_dir.read_evaluations() if row.step <= step),
            best=self.run_dir.read_best(),
            stopped=stopped,
        )


def _machine() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{processor() or machine()}, CPU only"


def is_main_process() -> bool:
    """True in the one process of several that prints results."""
    return bool(PartialState().is_main_process)


def silence_libraries() -> None:
    """Turns off the progress bars and warnings of the training libraries, for programs that report progress."""
    disable_progress_bar()
    set_verbosity_error()
    logging.getLogger("trl.trainer.grpo_trainer").addFilter(_is_not_masked_warning)


def _is_not_masked_warning(record: logging.LogRecord) -> bool:
    return MASKED_WARNING not in record.getMessage()


def _build_trainer(setup: TrainingSetup, run_dir: RunDir) -> ConductorTrainer:
    config = setup.config
    instances = setup.prompt_instances(config.grpo.steps * config.grpo.questions)
    loaded = _load_policy(config, run_dir)
    check_prompts(setup, loaded)
    grammars = compile_round_grammars(loaded, instances[0], has_second_round=config.recursion is not None)
    trainer = ConductorTrainer(
        model=loaded.model,
        processing_class=loaded.tokenizer,
        rollout_function=RolloutFunction(
            instances, setup.rollout_scorer, loaded.plan_tokenizer, grammars=grammars, progress=setup.progress
        ),
        loss_chunk=config.grpo.loss_chunk,
        reward_funcs=RewardFunction(config, instances, _read_references(config), log_plans=run_dir.write_plans),
        args=training_arguments(config, run_dir.path),
        train_dataset=Dataset.from_list([row for instance in instances for row in _dataset_rows(config, instance)]),
        peft_config=None if isinstance(loaded.model, PeftModel) else lora_config(config),
    )
    trainer.remove_callback(PrinterCallback)
    if config.validation:
        validator = Validator(setup, loaded.plan_tokenizer, grammars[0], run_dir)
        trainer.add_callback(ValidationCallback(validator, trainer))
    return trainer


def _load_policy(config: TrainConfig, run_dir: RunDir) -> LoadedModel:
    """Loads the model that GRPO begins with; when resuming, the trainer replaces its weights with the checkpoint's."""
    warm_start = run_dir.warm_start if config.warm_start else None
    if warm_start is not None and config.lora is None:
        return load_model(str(warm_start), dtype=config.weight_dtype)
    loaded = load_policy(config)
    if warm_start is None:
        return loaded
    return replace(loaded, model=PeftModel.from_pretrained(loaded.model, warm_start, is_trainable=True))


def _dataset_rows(config: TrainConfig, instance: PromptInstance) -> list[dict[str, Any]]:
    """Builds a row for each round, which TRL repeats to a group; second rounds get their prompts in the rollout."""
    prompt = [{"role": message.role, "content": message.text} for message in instance.messages]
    return [
        {"prompt": prompt, "instance": instance.index, "round": index + 1}
        for index in range(count_rounds(config, instance.index))
    ]


def _read_references(config: TrainConfig) -> dict[str, Reference]:
    references = read_lines(config.references, Reference) if config.references else []
    return {reference.id: reference for reference in references}
