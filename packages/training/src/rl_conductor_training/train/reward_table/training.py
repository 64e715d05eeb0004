"""`train_on_table`: supervised steps on right plans, then steps of a method, and the best adapter on validation."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from pydantic import Field

from rl_conductor._internal.jsonl import read_value, write_value
from rl_conductor.types import Value
from rl_conductor_training.train.policy.gguf_adapter import from_gguf
from rl_conductor_training.train.policy.model_loading import (
    LoadedModel,
    base_folder,
    load_base_model,
    shipped_adapter,
)
from rl_conductor_training.train.reward_table.policy import (
    SOLVED,
    Evaluation,
    PlanReader,
    encode_questions,
    evaluate_policy,
)
from rl_conductor_training.train.reward_table.prompt import PlanPrompt
from rl_conductor_training.train.reward_table.table import (
    TableQuestion,
    TableSettings,
    TrainingItem,
    method_order,
    supervised_order,
)
from rl_conductor_training.train.reward_table.trainer import StepWatcher, TableTrainer, training_arguments
from rl_conductor_training.train.run_dir import latest_complete_checkpoint

SUPERVISED = "supervised"
BEST, STATE_FILE = "best", "training.json"


class CurvePoint(Value):
    """The evaluation of a checkpoint on the validation questions."""

    stage: str
    """`supervised`, or the method."""
    step: int
    validation: Evaluation


class TableTraining(Value):
    """The state of a training on a table, stored in `training.json`."""

    settings: TableSettings
    curve: tuple[CurvePoint, ...] = ()
    best: int | None = None
    """Index of the point whose adapter is in the folder `best`."""
    started_at: Evaluation | None = None
    """The supervised start on the training questions."""
    losses: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    """The loss of each step by stage."""
    is_complete: bool = False
    """Whether all steps were made."""


@dataclass(frozen=True)
class TableData:
    """The questions of a training and the prompt of its planner."""

    train: Sequence[TableQuestion]
    validation: Sequence[TableQuestion]
    prompt: PlanPrompt


def train_on_table(
    data: TableData,
    settings: TableSettings,
    folder: Path,
    *,
    report: Callable[[str], object] = lambda _text: None,
    is_over: Callable[[], bool] = lambda: False,
) -> TableTraining:
    """Trains a LoRA adapter; the best one on the validation questions is in `folder / "best"`.

    A model that has an adapter, such as `embedded:conductor-135m`, is trained on from there, without supervised steps.

    The same call resumes an interrupted training from its latest checkpoint. Settings and data must be the same.

    Args:
        data: the scored plans of the training and validation questions.
        settings: the model, the method and the hyper-parameters.
        folder: checkpoints, the state, and the best adapter.
        report: called with a line of progress.
        is_over: whether to stop; asked between two questions.

    Raises:
        ConfigError: the model can't be loaded.
    """
    report(f"loading {settings.model}")
    loaded = load_base_model(settings.model, dtype=settings.dtype)
    return _TableRun(data, settings, folder, loaded, report, is_over).run()


@dataclass
class _TableRun:
    """One process of a training."""

    data: TableData
    settings: TableSettings
    folder: Path
    loaded: LoadedModel
    report: Callable[[str], object]
    is_over: Callable[[], bool]
    state: TableTraining = field(init=False)

    def __post_init__(self) -> None:
        prompt = self.data.prompt
        grammar = None if prompt.gbnf is None else self.loaded.compile_grammar(prompt.space, prompt.settings.form)
        self.reader = PlanReader(self.loaded, grammar)
        self.train = encode_questions(self.data.train, prompt, self.loaded)
        self.validation = encode_questions(self.data.validation, prompt, self.loaded)
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / STATE_FILE
        self.state = read_value(file, TableTraining) if file.exists() else TableTraining(settings=self.settings)

    def run(self) -> TableTraining:
        """Runs both stages, as far as the time reaches."""
        if self.state.is_complete:
            return self.state
        torch.manual_seed(self.settings.seed)
        model = self._supervised_model()
        if model is not None and self.settings.method != SUPERVISED:
            self._train_method(model)
        if not self.is_over():
            self._store(is_complete=True)
        return self.state

    def _supervised_model(self) -> Any | None:
        """Returns the model after the supervised steps; `None` if the time was over before."""
        finished = self.folder / SUPERVISED / "final"
        if not finished.exists() and (shipped := shipped_adapter(self.settings.model)):
            from_gguf(shipped, finished, base=base_folder(self.settings.model))
        if not finished.exists():
            settings = self.settings
            lora = LoraConfig(
                r=settings.rank,
                lora_alpha=settings.alpha,
                target_modules=settings.targets if isinstance(settings.targets, str) else list(settings.targets),
                task_type="CAUSAL_LM",
            )
            model = get_peft_model(self.loaded.model, lora)
            self._train_stage(model, SUPERVISED, supervised_order(self.data.train, settings))
            if self.is_over():
                return None
            _save_adapter(model, finished)
            return model
        return PeftModel.from_pretrained(self.loaded.model, finished, is_trainable=True)

    def _train_method(self, model: Any) -> None:
        """Trains by the method; the questions that the supervised start answers already are replayed."""
        solved = self._solved_by(model) if self.settings.replay else []
        if solved is not None:
            self._train_stage(model, self.settings.method, method_order(self.data.train, solved, self.settings))

    def _solved_by(self, model: Any) -> list[int] | None:
        """Returns the training questions that the supervised start solves; `None` if the time is over before."""
        if self.state.started_at is None:
            self.report("evaluating the supervised start on the training questions")
            start = evaluate_policy(model, self.train, self.reader, is_over=self.is_over)
            if start is None:
                return None
            self._store(started_at=start)
        assert self.state.started_at is not None
        expected = self.state.started_at.expected_scores
        return [index for index, score in enumerate(expected) if score >= SOLVED]

    def _train_stage(self, model: Any, stage: str, items: Sequence[TrainingItem]) -> None:
        if not items:
            self.report(f"{stage}: no question can be learned from")
            return
        folder, is_supervised = self.folder / stage, stage == SUPERVISED

        def on_step(step: int, steps: int, loss: float) -> None:
            losses = (*self.state.losses.get(stage, ())[: step - 1], loss)
            self._store(losses={**self.state.losses, stage: losses})
            self.report(f"{stage}: step {step} of {steps}, loss {loss:.3f}")

        trainer = TableTrainer(
            questions=self.train,
            grammar=self.reader.grammar,
            settings=self.settings,
            model=model,
            processing_class=self.loaded.tokenizer,
            train_dataset=list(items),
            args=training_arguments(folder, self.settings, is_supervised=is_supervised),
        )
        every = self.settings.supervised_steps if is_supervised else self.settings.evaluate_every
        trainer.add_callback(
            StepWatcher(
                on_step=on_step,
                evaluate=lambda step: self._evaluate(model, stage, step),
                every=every,
                is_over=self.is_over,
            )
        )
        checkpoint = latest_complete_checkpoint(folder)
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))

    def _evaluate(self, model: Any, stage: str, step: int) -> bool:
        """Evaluates on the validation questions, and keeps the adapter if none was better.

        Returns whether the time sufficed.
        """
        self.report(f"{stage}: evaluating step {step} on {len(self.validation)} validation questions")
        evaluation = evaluate_policy(model, self.validation, self.reader, is_over=self.is_over)
        if evaluation is None:
            return False
        curve = [point for point in self.state.curve if (point.stage, point.step) != (stage, step)]
        curve.append(CurvePoint(stage=stage, step=step, validation=evaluation))
        best = max(range(len(curve)), key=lambda index: _quality(curve[index].validation))
        if best == len(curve) - 1:
            _save_adapter(model, self.folder / BEST)
        self._store(curve=tuple(curve), best=best)
        self.report(
            f"{stage}: step {step}, greedy plans right {evaluation.greedy:.2f}, expected {evaluation.expected:.2f}"
        )
        return True

    def _store(self, **changes: Any) -> None:
        self.state = self.state.model_copy(update=changes)
        write_value(self.folder / STATE_FILE, self.state)


def _quality(evaluation: Evaluation) -> tuple[float, float]:
    """Orders evaluations: the accuracy of greedy plans, as served, then that of sampled ones."""
    return evaluation.greedy, evaluation.expected


def _save_adapter(model: Any, folder: Path) -> None:
    """Replaces the adapter in `folder`, which is never incomplete."""
    partial = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
