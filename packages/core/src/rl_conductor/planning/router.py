"""`Tiers`: a light classifier, learned from the user's own requests, of those that one call of one worker answers.

It is a logistic regression over the words of the user's last message, its length, and what else the request holds. The
whole of it is one JSON file, which holds numbers only; `rl-conductor calibrate` makes it. It calls no model and learns
nothing: that is done in `bench.tiers`.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from math import exp, log1p, sqrt
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError

from rl_conductor._internal.io import read_text, writing
from rl_conductor._internal.validation import first_problem
from rl_conductor.errors import ConfigError
from rl_conductor.planning.prompts import prompt_in
from rl_conductor.trace.trace import TierDecision
from rl_conductor.types import FilePart, ImagePart, Names, Request, Value

BUCKETS = 4_096
"""Places for words; words that share one by chance count as the same."""
MOST_CHARS = 4_000
"""How much of a message is read: more would take longer than it is worth."""
_WORD = re.compile(r"\w+|[^\w\s]")
_DIGIT = re.compile(r"\d")

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Learned(Value):
    """What a classifier was made from, for whoever wonders later."""

    source: str
    """The task or the store."""
    requests: int
    right: int
    """How many of them one call answered."""
    risk: Finite
    """The share of wrong answers among those of a single call that was asked for, at most."""
    made: str
    """The day, by UTC."""


class Tiers(Value):
    """Who answers simple requests alone, and how they are known."""

    format: Literal[1] = 1
    worker: str
    model: str
    """The worker's model when it was measured, as `provider:name`."""
    threshold: Finite = Field(gt=0, le=1)
    """The least probability that one call is right at which it is made."""
    longest: int = Field(gt=0)
    """Characters of the longest message that it judges."""
    seen: Names = frozenset()
    """What requests held that it has learned from, by the names of `holds`."""
    bias: Finite
    length: Finite
    """Weight of the message's length."""
    held: dict[str, Finite] = Field(default_factory=dict)
    """Weights of what a request holds, by the names of `holds`."""
    words: dict[Annotated[int, Field(ge=0, lt=BUCKETS)], Finite]
    """Weights of words by their place; those that are not there weigh nothing."""
    learned: Learned

    @cached_property
    def sha256(self) -> str:
        """Its fingerprint, which stands in traces."""
        whole = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(whole.encode()).hexdigest()

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The classifier in a file.

        Raises:
            ConfigError: there is none, it is of another format, or it is not as it was written.
        """
        made = "make it anew with rl-conductor calibrate --tiers"
        try:
            kept = _Kept.model_validate_json(read_text(path))
            tiers = cls.model_validate(kept.tiers)
        except ValidationError as error:
            raise ConfigError(f"{str(path)!r} holds no tiers ({first_problem(error)}); {made}") from error
        if tiers.sha256 != kept.sha256:
            raise ConfigError(f"the tiers {str(path)!r} were changed after they were made; {made}")
        return tiers

    def write(self, path: Path) -> None:
        """Keep it in a file.

        Raises:
            ConfigError: it can't be written.
        """
        kept = _Kept(sha256=self.sha256, tiers=self.model_dump(mode="json"))
        with writing(path):
            path.write_text(kept.model_dump_json() + "\n", encoding="utf-8")

    def decide(self, request: Request) -> TierDecision:
        """Whether one call will do. What goes beyond what it has learned from is the Conductor's."""
        unknown = self._unknown(request)
        likely = None if unknown else self.probability(request)
        return TierDecision(
            tier="single" if likely is not None and likely >= self.threshold else "conductor",
            worker=self.worker,
            probability=likely,
            threshold=self.threshold,
            classifier=self.sha256,
            because=unknown,
        )

    def probability(self, request: Request) -> float:
        """How likely it is that one call of the worker answers right."""
        message = prompt_in(request.messages)
        score = self.bias + self.length * length(message)
        score += sum(self.held.get(name, 0.0) for name in holds(request))
        score += sum(self.words.get(place, 0.0) * value for place, value in words(message).items())
        return 1 / (1 + exp(-max(min(score, 500.0), -500.0)))

    def _unknown(self, request: Request) -> str:
        """What it has not learned to judge, in words; empty when there is nothing."""
        message = prompt_in(request.messages)
        if strange := sorted(holds(request) - self.seen):
            return f"it has learned from no request with {' and '.join(strange)}"
        if len(message) > self.longest:
            return f"it judges no message longer than {self.longest:,} characters"
        return "" if message.strip() else "there is no text to judge by"


class _Kept(Value):
    """The file."""

    sha256: str
    tiers: dict[str, object]


# ---------------------------------------------------------------------------------------- features


def holds(request: Request) -> frozenset[str]:
    """What a request holds beside the user's words."""
    parts = {type(part) for message in request.messages for part in message.content}
    there = {
        "images": ImagePart in parts,
        "files": FilePart in parts,
        "tools": bool(request.tools),
        "a format of the answer": request.response_format is not None,
        "earlier turns": any(message.role in ("assistant", "tool") for message in request.messages),
    }
    return frozenset(name for name, is_there in there.items() if is_there)


def length(message: str) -> float:
    """Of the order of 1."""
    return log1p(len(message)) / 8


def words(message: str) -> dict[int, float]:
    """Which words and pairs of words there are, by their places, as a vector of length 1."""
    found: dict[int, float] = {}
    for term in dict.fromkeys(_terms(message)):
        digest = zlib.crc32(term.encode())
        place = digest % BUCKETS
        found[place] = found.get(place, 0.0) + (1.0 if digest >> 31 else -1.0)  # so that what collides may cancel
    size = sqrt(sum(value * value for value in found.values()))
    return {place: value / size for place, value in found.items()} if size else {}


def _terms(message: str) -> Iterator[str]:
    """Words and pairs; of numbers only how long they are."""
    each = [_DIGIT.sub("0", word) for word in _WORD.findall(message[:MOST_CHARS].lower())]
    yield from each
    yield from map(" ".join, pairwise(each))
