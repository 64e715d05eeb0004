"""`WorkflowSelector`: picks one of a few learned workflows for a request, without any call to a planner.

With several workflows it is a linear classifier over hashed words and letter sequences of the user's last message;
with one workflow it is that workflow for every request. It is stored as plain JSON, which `rl-conductor learn` creates
and this module only applies.
"""

from __future__ import annotations

import re
import zlib
from math import sqrt
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rl_conductor.errors import ConfigError
from rl_conductor.planning.router import BUCKETS, MAX_CHARS, Finite, words
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker_prompt import prompt_in
from rl_conductor.types import Request, Value
from rl_conductor.workflow.workflow import Workflow

NGRAM = 4
"""Length of the letter sequences, which match words in other forms, such as plurals."""
FEATURES = 2 * BUCKETS
"""Number of features: buckets of words and word pairs, then buckets of letter sequences."""
_DIGIT = re.compile(r"\d")


class WorkflowScore(Value):
    """The weights of one workflow in the classifier."""

    bias: Finite = 0.0
    weights: dict[Annotated[int, Field(ge=0, lt=FEATURES)], Finite] = Field(default_factory=dict)
    """Weights by feature of `text_features`; missing ones are 0."""

    def score(self, features: dict[int, float]) -> float:
        """Returns the score of the workflow for a message; the highest one is selected."""
        return self.bias + sum(self.weights.get(bucket, 0.0) * value for bucket, value in features.items())


class WorkflowSelector(Value):
    """Learned workflows and the linear classifier that picks one of them."""

    format: Literal[1] = 1
    workflows: tuple[Workflow, ...] = Field(min_length=1)
    scores: tuple[WorkflowScore, ...] = ()
    """One for each workflow, in the same order; empty if there is only one workflow."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        expected = 0 if len(self.workflows) == 1 and not self.scores else len(self.workflows)
        if len(self.scores) != expected:
            raise ValueError(f"{len(self.workflows)} workflows need as many scores, not {len(self.scores)}")
        return self

    def select(self, request: Request) -> Workflow:
        """Returns the workflow for a request; the first of equally good ones."""
        if not self.scores:
            return self.workflows[0]
        features = text_features(prompt_in(request.messages))
        scores = [score.score(features) for score in self.scores]
        return self.workflows[scores.index(max(scores))]

    def check_pool(self, pool: WorkerPool) -> None:
        """Checks that `pool` contains every worker of the workflows.

        Raises:
            ConfigError: a worker is missing.
        """
        workers = {step.worker for workflow in self.workflows for step in workflow.steps}
        if missing := sorted(workers - pool.keys()):
            raise ConfigError(
                f"the learned workflows use {', '.join(map(repr, missing))}, but the pool has {', '.join(pool)}; "
                "add these workers or run rl-conductor learn again"
            )


def text_features(message: str) -> dict[int, float]:
    """Hashes the words, word pairs and letter sequences of a message into a sparse vector, as values by bucket."""
    return words(message) | {BUCKETS + bucket: value for bucket, value in _ngrams(message).items()}


def similarity(first: dict[int, float], second: dict[int, float]) -> float:
    """Returns the dot product of two sparse vectors."""
    return sum(value * second.get(bucket, 0.0) for bucket, value in first.items())


def _ngrams(message: str) -> dict[int, float]:
    text = f" {' '.join(_DIGIT.sub('0', message[:MAX_CHARS].lower()).split())} "
    grams = {text[start : start + NGRAM] for start in range(len(text) - NGRAM + 1)}
    counts: dict[int, float] = {}
    for gram in sorted(grams):
        digest = zlib.crc32(gram.encode())
        bucket = digest % BUCKETS
        counts[bucket] = counts.get(bucket, 0.0) + (1.0 if digest >> 31 else -1.0)  # random sign: collisions cancel
    norm = sqrt(sum(value * value for value in counts.values()))
    return {bucket: value / norm for bucket, value in counts.items()} if norm else {}
