"""The model as a policy over the plans of a table: encodes questions, and computes the probabilities of their plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from rl_conductor.types import Value
from rl_conductor_training.train.policy.grammar_constraint import GrammarConstraint
from rl_conductor_training.train.policy.logprobs import plan_logprobs
from rl_conductor_training.train.policy.model_loading import LoadedModel
from rl_conductor_training.train.reward_table.prompt import PlanPrompt
from rl_conductor_training.train.reward_table.table import TableQuestion

SOLVED = 0.9
"""Expected score from which a question counts as solved."""


@dataclass(frozen=True)
class EncodedQuestion:
    """The tokens of a question and its plans."""

    prompt: list[int]
    plans: list[list[int]]
    """Each with an end token."""
    scores: torch.Tensor
    demonstration: int | None


class Evaluation(Value):
    """A policy on the questions of a table, without any call."""

    n: int
    greedy: float
    """Mean score of the most probable plan of each question."""
    expected: float
    """Mean score of plans sampled from the table by the policy."""
    entropy: float
    """Mean entropy of the policy over the plans of a question, in nats."""
    support: float
    """Mean probability that a sampled plan is in the table at all."""
    greedy_scores: tuple[float, ...]
    """Score of the most probable plan of each question."""
    expected_scores: tuple[float, ...]


def encode_questions(
    questions: Sequence[TableQuestion], prompt: PlanPrompt, loaded: LoadedModel
) -> list[EncodedQuestion]:
    """Encodes questions and plans as in serving."""
    tokenizer = loaded.plan_tokenizer

    def encode_plan(text: str) -> list[int]:
        return [*loaded.tokenizer(text, add_special_tokens=False)["input_ids"], loaded.end_tokens[0]]

    return [
        EncodedQuestion(
            prompt=tokenizer.encode_prompt(prompt.messages(question.conversation)),
            plans=[encode_plan(prompt.text(plan.workflow)) for plan in question.plans],
            scores=torch.tensor([plan.score for plan in question.plans]),
            demonstration=question.demonstration,
        )
        for question in questions
    ]


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
    grammar: GrammarConstraint | None,
    *,
    is_over: Callable[[], bool] = lambda: False,
) -> Evaluation | None:
    """Evaluates the model on questions of the table; `None` if the time is over before the last one."""
    rows: list[tuple[float, float, float, float]] = []
    with _inference(model):
        for question in questions:
            if is_over():
                return None
            log_probs = sequence_logprobs(model, question, grammar).float().cpu()
            log_q = log_probs.log_softmax(0)
            q = log_q.exp()
            greedy = float(question.scores[log_probs.argmax()])
            expected = float((q * question.scores).sum())
            rows.append((greedy, expected, float(-(q * log_q).sum()), float(log_probs.logsumexp(0).exp())))
    greedy_scores, expected_scores, entropies, supports = zip(*rows, strict=True)
    return Evaluation(
        n=len(rows),
        greedy=sum(greedy_scores) / len(rows),
        expected=sum(expected_scores) / len(rows),
        entropy=sum(entropies) / len(rows),
        support=sum(supports) / len(rows),
        greedy_scores=greedy_scores,
        expected_scores=expected_scores,
    )


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
