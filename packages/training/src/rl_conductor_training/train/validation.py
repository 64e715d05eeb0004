"""Validation during training: scores the policy on questions that it is not trained on, and keeps the best model.

Plans are sampled like those of training, `validation.rollouts` for each question, with a random state of their own: a
run with validation takes the same steps as one without.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import TrainerCallback

from rl_conductor._internal.sync import run_sync
from rl_conductor.types import total
from rl_conductor_training.statistics import estimate
from rl_conductor_training.tasks.groups import group_of
from rl_conductor_training.train.budget import CapReachedError
from rl_conductor_training.train.policy.grammar_constraint import GrammarConstraint
from rl_conductor_training.train.policy.plan_tokenizer import PlanTokenizer
from rl_conductor_training.train.policy.sampling import sample_plans
from rl_conductor_training.train.prompt_instances import PromptInstance
from rl_conductor_training.train.rollouts.scoring import ScoredPlan
from rl_conductor_training.train.run_dir import RunDir, ValidationScore
from rl_conductor_training.train.setup import TrainingSetup

if TYPE_CHECKING:
    from rl_conductor_training.train.trainers.conductor_trainer import ConductorTrainer

log = logging.getLogger("rl_conductor_training.train")

ScoredRow = tuple[int, ScoredPlan]
"""The index of a question and a scored plan for it."""


class Validator:
    """Evaluates the policy on the validation questions."""

    def __init__(
        self, setup: TrainingSetup, tokenizer: PlanTokenizer, grammar: GrammarConstraint | None, run_dir: RunDir
    ) -> None:
        assert setup.config.validation is not None
        self.settings = setup.config.validation
        self.run_dir = run_dir
        self._setup = setup
        self._tokenizer = tokenizer
        self._grammar = grammar

    def is_due(self, step: int) -> bool:
        """Returns whether the policy is evaluated after `step`: before the first step, at intervals and at the end."""
        return step % self.settings.every == 0 or step == self._setup.config.grpo.steps

    def evaluate(self, trainer: ConductorTrainer) -> ValidationScore | None:
        """Evaluates the current policy; returns `None` if no plan could be judged.

        Raises:
            CapReachedError: a cap of the run is used up, in this process or in another.
        """
        started_at = time.monotonic()
        rows = self._sample_and_score(trainer)
        if any(gather_object([self._setup.budget.is_over])):
            raise CapReachedError
        all_rows: list[ScoredRow] = gather_object(rows)
        seconds = time.monotonic() - started_at
        if trainer.is_world_process_zero() and (failures := unscored_questions(all_rows)):
            self._warn_of_unscored(failures, trainer.state.global_step)
        return summarize(all_rows, self._setup.validation_instances, trainer.state.global_step, seconds)

    def _warn_of_unscored(self, failures: Mapping[int, str], step: int) -> None:
        instances = self._setup.validation_instances
        index, failure = next(iter(failures.items()))
        log.warning(
            "the validation after step %d leaves out %d of %d questions, such as %.80r (%s): its model can't become "
            "the best one, because only scores of all questions are compared",
            step,
            len(failures),
            len(instances),
            instances[index].sample.question,
            failure,
        )

    def _sample_and_score(self, trainer: ConductorTrainer) -> list[ScoredRow]:
        """Samples and scores the plans of this process's share of the questions."""
        instances, config, process = self._setup.validation_instances, self._setup.config, PartialState()
        share = math.ceil(len(instances) / process.num_processes)
        start = process.process_index * share
        # Every process samples the same number of plans, because engines sample together; surplus ones are not run.
        picked = [instances[(start + offset) % len(instances)] for offset in range(share)]
        repeated = [instance for instance in picked for _ in range(self.settings.rollouts)]
        texts = self._sample(trainer, repeated, batch_size=self.settings.rollouts * config.grpo.questions)
        count = min(max(len(instances) - start, 0), share) * self.settings.rollouts
        self._setup.progress.begin(f"validation after step {trainer.state.global_step}: running plans", count)
        scorer = self._setup.validation_scorer
        scored = run_sync(scorer.score_plans(repeated[:count], texts[:count]))
        light = [plan.model_copy(update={"round": None}) for plan in scored]
        return [(instance.index, plan) for instance, plan in zip(repeated[:count], light, strict=True)]

    def _sample(self, trainer: ConductorTrainer, instances: Sequence[PromptInstance], *, batch_size: int) -> list[str]:
        self._setup.progress.begin(f"validation after step {trainer.state.global_step}: sampling plans", len(instances))
        texts: list[str] = []
        with trainer.sampling_state(seed=self._setup.config.seed):
            for start in range(0, len(instances), batch_size):
                batch = instances[start : start + batch_size]
                prompts = [self._tokenizer.encode_prompt(instance.messages) for instance in batch]
                plans = sample_plans(prompts, trainer, self._grammar, group_size=self.settings.rollouts)
                texts += [self._tokenizer.decode_plan(plan.tokens) for plan in plans]
                self._setup.progress.advance(len(batch))
        return texts


class ValidationCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Evaluates at intervals, and saves the model with the best score so far in `best/`.

    Scores are compared only if they are of all questions: without those that failed, the others may be easier.
    """

    def __init__(self, validator: Validator, trainer: ConductorTrainer) -> None:
        self._validator = validator
        self._trainer = trainer

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Evaluates the model that training begins with, or that an interrupted call left without."""
        steps = {evaluation.step for evaluation in self._validator.run_dir.read_evaluations()}
        if self._validator.is_due(state.global_step) and state.global_step not in steps:
            self._evaluate()

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        """Evaluates if it is time; a cap that is reached ends the run here, with a checkpoint."""
        if not self._validator.is_due(state.global_step):
            return
        try:
            self._evaluate()
        except CapReachedError:
            control.should_save = control.should_training_stop = True

    def _evaluate(self) -> None:
        trainer, run_dir = self._trainer, self._validator.run_dir
        evaluation = self._validator.evaluate(trainer)
        if evaluation is None:
            return
        trainer.log_validation(evaluation)
        best = run_dir.read_best()
        trainer.accelerator.wait_for_everyone()  # nobody replaces the best model while another process reads it
        if not evaluation.left_out and (best is None or evaluation.score > best.score):
            trainer.save_model(str(run_dir.unfinished_best))
            if trainer.is_world_process_zero():
                run_dir.replace_best(evaluation)
        if trainer.is_world_process_zero():
            run_dir.write_evaluation(evaluation)
        trainer.accelerator.wait_for_everyone()


def unscored_questions(rows: Sequence[ScoredRow]) -> dict[int, str]:
    """Returns the questions for which no plan could be judged, by index, with the reason for one of their plans."""
    scored = {index for index, plan in rows if not plan.masked}
    return {index: plan.explanation for index, plan in rows if index not in scored}


def summarize(
    rows: Sequence[ScoredRow], instances: Sequence[PromptInstance], step: int, seconds: float
) -> ValidationScore | None:
    """Averages the scores of plans over questions; masked plans are left out."""
    by_question: dict[int, list[float]] = {}
    for index, plan in rows:
        if not plan.masked:
            by_question.setdefault(index, []).append(plan.score or 0.0)
    if not by_question:
        return None
    means = [sum(scores) / len(scores) for scores in by_question.values()]
    score = estimate(means, [group_of(instances[index].sample) for index in by_question])
    plans = [plan for _, plan in rows]
    usage = total(plan.usage for plan in plans)
    return ValidationScore(
        step=step,
        score=score.value,
        error=score.error,
        valid=sum(plan.valid for plan in plans) / len(plans),
        questions=score.n,
        left_out=len(unscored_questions(rows)),
        plans=sum(map(len, by_question.values())),
        usd=float(usage.cost),
        tokens=usage.total_tokens,
        seconds=seconds,
    )
