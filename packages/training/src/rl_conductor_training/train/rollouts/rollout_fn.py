"""TRL's `rollout_func`: samples and executes plans, and gives some of them a second round.

In a second round the prompt has the first plan and its answer, as in serving, and the policy writes another plan or an
empty one. Every plan is executed once: its result is stored on its row, for the reward and for the next round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from accelerate.utils import gather_object

from rl_conductor._internal.sync import run_sync
from rl_conductor_training.train.budget import CapReachedError, TrainingBudget
from rl_conductor_training.train.policy.grammar_constraint import GrammarConstraint
from rl_conductor_training.train.policy.plan_tokenizer import PlanTokenizer
from rl_conductor_training.train.policy.sampling import SampledPlan, sample_plans
from rl_conductor_training.train.progress import TrainProgress
from rl_conductor_training.train.prompt_instances import PromptInstance
from rl_conductor_training.train.rollouts.scoring import RolloutScorer, ScoredPlan

Prompt = tuple[int, ...]


class RolloutRequest(NamedTuple):
    """The prompt instance and round of a row of a batch."""

    instance: int
    """Index of the prompt instance."""
    round: int
    """1 or 2."""


@dataclass(frozen=True)
class Rollout:
    """A row of a batch: a sampled plan and its score."""

    instance: PromptInstance
    prompt: list[int]
    sampled: SampledPlan
    scored: ScoredPlan | None
    """`None` for a second round without a first answer: the tokens are then the first round's, and are masked."""
    previous: ScoredPlan | None = None
    """The scored plan of the first round, in a second one."""


class RolloutFunction:
    """Generates the rollouts of a batch."""

    def __init__(
        self,
        instances: Sequence[PromptInstance],
        scorer: RolloutScorer,
        tokenizer: PlanTokenizer,
        *,
        grammars: Sequence[GrammarConstraint | None],
        progress: TrainProgress,
    ) -> None:
        """Stores the inputs of all batches.

        Args:
            instances: all prompt instances of the run, by index.
            scorer: executes plans and scores their answers.
            tokenizer: encodes prompts and decodes plans.
            grammars: the grammar of each round, or `None` for unconstrained sampling.
            progress: reports sampling and running.
        """
        self._instances = instances
        self._scorer = scorer
        self._tokenizer = tokenizer
        self._grammars = grammars
        self._progress = progress
        self._first_prompts: dict[Prompt, Prompt] = {}
        """For each prompt of a second round, the prompt of the first, which is a prefix of it."""

    def __call__(self, _prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Generates a rollout for each of `trainer.rollout_requests`, in this order.

        Raises:
            CapReachedError: a cap on the spending ended the batch, in this process or in another.
        """
        _ensure_within_caps(self._scorer.budget)
        requests: Sequence[RolloutRequest] = trainer.rollout_requests
        continued = {request.instance for request in requests if request.round == 2}
        instances = [self._instances[request.instance] for request in requests if request.round == 1]
        first = self._run_first_round(instances, trainer)
        second = (
            self._run_second_round([rollout for rollout in first if rollout.instance.index in continued], trainer)
            if continued
            else []
        )
        _ensure_within_caps(self._scorer.budget)
        self._begin(trainer, "updating the model")
        rounds = {1: iter(first), 2: iter(second)}
        return _columns([next(rounds[request.round]) for request in requests])

    def grammar(self, prompt: Sequence[int]) -> GrammarConstraint | None:
        """Returns the grammar under which plans were sampled for a prompt of the latest batch."""
        is_second, _ = self.prompt_group(prompt)
        return self._grammars[is_second]

    def prompt_group(self, prompt: Sequence[int]) -> tuple[bool, Prompt]:
        """Returns the group of a prompt of the latest batch: whether it is a second round, and the common prefix."""
        key = tuple(prompt)
        return key in self._first_prompts, self._first_prompts.get(key, key)

    def _run_first_round(self, instances: Sequence[PromptInstance], trainer: Any) -> list[Rollout]:
        prompts = [self._tokenizer.encode_prompt(instance.messages) for instance in instances]
        self._begin(trainer, f"sampling {len(prompts)} plans")
        sampled = sample_plans(prompts, trainer, self._grammars[0], group_size=trainer.num_generations)
        texts = [self._tokenizer.decode_plan(plan.tokens) for plan in sampled]
        self._begin(trainer, "running plans", len(texts))
        return list(map(Rollout, instances, prompts, sampled, run_sync(self._scorer.score_plans(instances, texts))))

    def _run_second_round(self, first: Sequence[Rollout], trainer: Any) -> list[Rollout]:
        instances = {row: instance for row, rollout in enumerate(first) if (instance := _next_instance(rollout))}
        prompts = [
            self._tokenizer.encode_prompt(instances[row].messages) if row in instances else rollout.prompt
            for row, rollout in enumerate(first)
        ]
        self._begin(trainer, f"sampling {len(prompts)} plans of the second round")
        # For all rows, with or without an answer, because every vLLM engine must get the same number of prompts.
        sampled = sample_plans(prompts, trainer, self._grammars[1], group_size=1)
        texts = [self._tokenizer.decode_plan(sampled[row].tokens) for row in instances]
        previous = [first[row].scored for row in instances]
        self._begin(trainer, "running plans of the second round", len(texts))
        scored_plans = run_sync(self._scorer.score_plans(list(instances.values()), texts, previous))
        second = [replace(rollout, scored=None, previous=rollout.scored) for rollout in first]
        for row, scored in zip(instances, scored_plans, strict=True):
            second[row] = Rollout(instances[row], prompts[row], sampled[row], scored, previous=first[row].scored)
        self._first_prompts = {tuple(prompts[row]): tuple(first[row].prompt) for row in instances}
        return second

    def _begin(self, trainer: Any, work: str, total: int = 0) -> None:
        self._progress.begin(f"step {trainer.state.global_step + 1}: {work}", total)


def _ensure_within_caps(budget: TrainingBudget) -> None:
    """Raises `CapReachedError` in all processes if a cap is reached in one of them."""
    if any(gather_object([budget.is_over])):
        raise CapReachedError


def _next_instance(rollout: Rollout) -> PromptInstance | None:
    """Returns the instance of the second round; `None` where the first has no answer."""
    finished = rollout.scored.round if rollout.scored else None
    return rollout.instance.next_round(finished) if finished else None


def _columns(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Returns the columns that TRL expects of the rows; it passes further columns to the reward function."""
    log_probs = [rollout.sampled.log_probs for rollout in rollouts]
    columns = {
        "prompt_ids": [rollout.prompt for rollout in rollouts],
        "completion_ids": [rollout.sampled.tokens for rollout in rollouts],
        "logprobs": None if None in log_probs else log_probs,
        "rollouts": list(rollouts),
    }
    if any(rollout.previous for rollout in rollouts):
        columns["env_mask"] = [[int(rollout.scored is not None)] * len(rollout.sampled.tokens) for rollout in rollouts]
    return columns
