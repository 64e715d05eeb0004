"""The model as a policy over the plans of a table: encodes questions, and computes the probabilities of their plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig

from rl_conductor.types import Value
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.train.policy.grammar_constraint import GrammarConstraint
from rl_conductor_training.train.policy.logprobs import plan_logprobs
from rl_conductor_training.train.policy.model_loading import LoadedModel
from rl_conductor_training.train.policy.sampling import generate
from rl_conductor_training.train.reward_table.prompt import PlanPrompt
from rl_conductor_training.train.reward_table.table import TableQuestion

BATCH = 12
"""Number of plans that are decoded at the same time."""
SPARE_TOKENS = 32
"""Tokens that a decoded plan may have more than the longest one of the table."""
SOLVED = 0.9
"""Expected score from which a question counts as solved."""


@dataclass(frozen=True)
class EncodedQuestion:
    """The tokens of a question and its plans."""

    source: PlanPrompt
    """The prompt that the tokens are of, which reads plans for this question."""
    prompt: list[int]
    plans: list[list[int]]
    """Each with an end token."""
    scores: torch.Tensor
    demonstration: int | None
    workflows: tuple[Workflow, ...]

    def score(self, workflow: Workflow | None) -> float | None:
        """Returns the score of a workflow; `None` if it is not in the table."""
        return float(self.scores[self.workflows.index(workflow)]) if workflow in self.workflows else None


class Evaluation(Value):
    """A policy on the questions of a table, without any call to a worker."""

    n: int
    greedy: float
    """Mean score of the plans that the model writes by greedy decoding, as served; 0 for plans outside of the table."""
    greedy_in_table: float
    """Share of these plans that are in the table."""
    preferred: float
    """Mean score of the plan of the table that is the most probable as a whole, which is often not the greedy one."""
    expected: float
    """Mean score of plans sampled from the table by the policy."""
    entropy: float
    """Mean entropy of the policy over the plans of a question, in nats."""
    support: float
    """Mean probability that a sampled plan is in the table at all."""
    greedy_scores: tuple[float, ...]
    """Score of the greedy plan of each question."""
    preferred_scores: tuple[float, ...]
    expected_scores: tuple[float, ...]


def encode_questions(
    questions: Sequence[TableQuestion], prompt: PlanPrompt, loaded: LoadedModel
) -> list[EncodedQuestion]:
    """Encodes questions and plans as in serving."""
    tokenizer = loaded.plan_tokenizer

    def encode_plan(text: str) -> list[int]:
        return [*loaded.tokenizer(text, add_special_tokens=False)["input_ids"], loaded.end_tokens[0]]

    def encode(question: TableQuestion) -> EncodedQuestion:
        source = prompt.with_cards(question.cards) if question.cards else prompt
        return EncodedQuestion(
            source=source,
            prompt=tokenizer.encode_prompt(source.messages(question.conversation)),
            plans=[encode_plan(source.text(plan.workflow, plan.reasoning)) for plan in question.plans],
            scores=torch.tensor([plan.score for plan in question.plans]),
            demonstration=question.demonstration,
            workflows=tuple(plan.workflow for plan in question.plans),
        )

    return [encode(question) for question in questions]


def sequence_logprobs(model: Any, question: EncodedQuestion, grammar: GrammarConstraint | None) -> torch.Tensor:
    """Computes the log-probability of each plan of a question."""
    return _sum_logprobs(model, [question.prompt] * len(question.plans), question.plans, grammar)


def demonstration_logprobs(
    model: Any, questions: Sequence[EncodedQuestion], grammar: GrammarConstraint | None
) -> torch.Tensor:
    """Computes the log-probability of the demonstration of each question; all of them must have one."""
    plans = [question.plans[question.demonstration] for question in questions if question.demonstration is not None]
    return _sum_logprobs(model, [question.prompt for question in questions], plans, grammar)


def _sum_logprobs(
    model: Any, prompts: Sequence[list[int]], plans: Sequence[list[int]], grammar: GrammarConstraint | None
) -> torch.Tensor:
    scored = plan_logprobs(model, prompts, plans, temperature=1.0, grammar=grammar)
    return torch.stack([plan.log_probs.sum() for plan in scored])


def evaluate_policy(
    model: Any,
    questions: Sequence[EncodedQuestion],
    reader: PlanReader,
    *,
    is_over: Callable[[], bool] = lambda: False,
) -> Evaluation | None:
    """Evaluates the model on questions of the table; `None` if the time is over before the last one."""
    sampled: list[tuple[float, float, float, float]] = []
    decoded: list[float | None] = []
    with _inference(model):
        for start in range(0, len(questions), BATCH):
            if is_over():
                return None
            batch = questions[start : start + BATCH]
            plans = reader.greedy_plans(model, batch)
            decoded += [question.score(plan) for question, plan in zip(batch, plans, strict=True)]
        for question in questions:
            if is_over():
                return None
            log_probs = sequence_logprobs(model, question, reader.grammar).float().cpu()
            log_q = log_probs.log_softmax(0)
            expected, entropy = float((log_q.exp() * question.scores).sum()), float(-(log_q.exp() * log_q).sum())
            preferred = float(question.scores[log_probs.argmax()])
            sampled.append((preferred, expected, entropy, float(log_probs.logsumexp(0).exp())))
    preferred_scores, expected_scores, entropies, supports = zip(*sampled, strict=True)
    greedy_scores = tuple(score or 0.0 for score in decoded)
    count = len(questions)
    return Evaluation(
        n=count,
        greedy=sum(greedy_scores) / count,
        greedy_in_table=sum(score is not None for score in decoded) / count,
        preferred=sum(preferred_scores) / count,
        expected=sum(expected_scores) / count,
        entropy=sum(entropies) / count,
        support=sum(supports) / count,
        greedy_scores=greedy_scores,
        preferred_scores=preferred_scores,
        expected_scores=expected_scores,
    )


@dataclass(frozen=True)
class PlanReader:
    """Decodes the most probable plan of a prompt."""

    loaded: LoadedModel
    grammar: GrammarConstraint | None

    def greedy_plans(self, model: Any, questions: Sequence[EncodedQuestion]) -> list[Workflow | None]:
        """Returns the plan that the model writes for each question by greedy decoding; `None` for an invalid one."""
        tokenizer = self.loaded.tokenizer
        longest = max(len(plan) for question in questions for plan in question.plans)
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=longest + SPARE_TOKENS,
            eos_token_id=self.loaded.end_tokens,
            pad_token_id=tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        )
        with _inference(model):
            plans = generate(model, [question.prompt for question in questions], config, self.grammar)
        texts = [self.loaded.plan_tokenizer.decode_plan(_without_end(plan, self.loaded.end_tokens)) for plan in plans]
        return [question.source.read(text) for question, text in zip(questions, texts, strict=True)]


def _without_end(plan: list[int], end_tokens: Sequence[int]) -> list[int]:
    return plan[:-1] if plan[-1] in end_tokens else plan


@contextmanager
def _inference(model: Any) -> Iterator[None]:
    """Disables gradients and dropout until the block ends; precision is as in training."""
    was_training, is_half = model.training, model.dtype == torch.bfloat16
    model.eval()
    try:
        with torch.no_grad(), torch.autocast(model.device.type, torch.bfloat16, enabled=is_half):
            yield
    finally:
        model.train(was_training)
