"""`Router`: a lightweight classifier that sends simple requests to a single call of one worker.

It is a logistic regression over the words of the user's last message, the message's length, and features of the request
such as images or tools. It is stored as one JSON file of numbers, which `rl-conductor calibrate --router` creates from
the user's own requests. This module only loads and applies it; the training package trains it.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from math import exp
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError

from rl_conductor._internal.io import read_text, write_text
from rl_conductor._internal.validation import first_field_error
from rl_conductor.errors import ConfigError
from rl_conductor.planning.routing.linear_score import Finite
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.text.features import BUCKETS, dot_product, length_feature, word_features
from rl_conductor.trace.routing_decision import RoutingDecision
from rl_conductor.types import Names, Request, Value, prompt_in

RECREATE = "create the router file again with rl-conductor calibrate --router"


class Learned(Value):
    """Training data and guarantees of a router, stored for reference."""

    source: str
    """The task or run store that the requests came from."""
    requests: int
    right: int
    """Number of requests that one call answered correctly."""
    risk: Finite
    """Upper bound on the share of wrong answers among requests sent to a single call."""
    trained_on: str
    """Date of the training in UTC, as `YYYY-MM-DD`."""


class Router(Value):
    """A worker that answers simple requests alone, and the classifier that recognizes them."""

    format: Literal[1] = 1
    worker: str
    model: str
    """The worker's model during training, as `provider:name`."""
    threshold: Finite = Field(gt=0, le=1)
    """Minimum probability of a correct answer at which a request is sent to the worker alone."""
    max_chars: int = Field(gt=0)
    """Maximum length in characters of messages that are classified; longer ones are planned."""
    trained_features: Names = frozenset()
    """Request features that occurred in training, as named by `request_features`."""
    bias: Finite
    length_weight: Finite
    """Weight of the message length."""
    request_weights: dict[str, Finite] = Field(default_factory=dict)
    """Weights of the request features, as named by `request_features`."""
    word_weights: dict[Annotated[int, Field(ge=0, lt=BUCKETS)], Finite]
    """Weights of words by hash bucket; missing buckets have weight 0."""
    learned: Learned

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the router's canonical JSON, which is stored in traces."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Loads a router from a file.

        Raises:
            ConfigError: the file can't be read, has another format, or does not match its checksum.
        """
        try:
            content = _RouterFile.model_validate_json(read_text(path))
            router = cls.model_validate(content.router)
        except ValidationError as error:
            raise ConfigError(f"{str(path)!r} is not a router file ({first_field_error(error)}); {RECREATE}") from error
        if router.sha256 != content.sha256:
            raise ConfigError(f"the router file {str(path)!r} was modified after it was created; {RECREATE}")
        return router

    def write(self, path: Path) -> None:
        """Saves the router to a file.

        Raises:
            ConfigError: the file can't be written.
        """
        content = _RouterFile(sha256=self.sha256, router=self.model_dump(mode="json"))
        write_text(path, content.model_dump_json() + "\n")

    def check_pool(self, pool: WorkerPool) -> None:
        """Checks that `pool` contains the worker with the model that the router was trained for.

        Raises:
            ConfigError: the worker is missing or has another model.
        """
        if self.worker not in pool:
            raise ConfigError(
                f"the router is for worker {self.worker!r}, but the pool has {', '.join(pool)}; {RECREATE}"
            )
        if (model_name := pool[self.worker].model.name) != self.model:
            raise ConfigError(
                f"the router was trained when {self.worker!r} was {self.model}, but now it is {model_name}; {RECREATE}"
            )

    def decide(self, request: Request) -> RoutingDecision:
        """Decides whether a request is sent to a single call or planned.

        Requests unlike those it was trained on are always planned.
        """
        reason = self._out_of_domain_reason(request)
        probability = None if reason else self.probability(request)
        return RoutingDecision(
            route="single" if probability is not None and probability >= self.threshold else "conductor",
            worker=self.worker,
            probability=probability,
            threshold=self.threshold,
            classifier=self.sha256,
            reason=reason,
        )

    def probability(self, request: Request) -> float:
        """Returns the probability that one call of the worker answers correctly."""
        message = prompt_in(request.messages)
        score = self.bias + self.length_weight * length_feature(message)
        score += sum(self.request_weights.get(name, 0.0) for name in request_features(request))
        score += dot_product(word_features(message), self.word_weights)
        return 1 / (1 + exp(-max(min(score, 500.0), -500.0)))

    def _out_of_domain_reason(self, request: Request) -> str:
        """Returns why the request is unlike the training data; empty if it is not."""
        message = prompt_in(request.messages)
        if untrained := sorted(request_features(request) - self.trained_features):
            return f"the router was not trained on requests with {' and '.join(untrained)}"
        if len(message) > self.max_chars:
            return f"the message is longer than {self.max_chars:,} characters"
        return "" if message.strip() else "the message has no text"


def request_features(request: Request) -> frozenset[str]:
    """Returns the names of the request's features other than the words of the last message."""
    features = {
        "images": "images" in request.needs,
        "files": "files" in request.needs,
        "tools": bool(request.tools),
        "a format of the answer": request.response_format is not None,
        "earlier turns": any(message.role in ("assistant", "tool") for message in request.messages),
    }
    return frozenset(name for name, is_present in features.items() if is_present)


class _RouterFile(Value):
    sha256: str
    router: dict[str, object]
