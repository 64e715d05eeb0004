"""A classifier made by hand, to which questions for a capital are simple, and questions to learn one from."""

from __future__ import annotations

import random
from typing import Any

from rl_conductor.planning.routing.router import Learned, Router
from rl_conductor.text.features import word_features
from rl_conductor.types import Message, Request

EASY = ("What is the capital of {}?", "Name the capital of {}.", "Which city is the capital of {}?")
HARD = ("Prove that {} is not compact.", "Derive a bound for {} and discuss it.", "Write a parser for {} with tests.")
MADE = Learned(source="a test", requests=100, right=50, risk=0.05, trained_on="2026-11-21")


def capital_router(worker: str = "a", **changed: Any) -> Router:
    """A router for a scripted worker."""
    weights = {place: 40 * value for place, value in word_features("capital").items()}
    known = {"worker": worker, "model": f"scripted:{worker}", "threshold": 0.9, "max_chars": 200, "learned": MADE}
    return Router.model_validate(known | {"bias": -5.0, "length_weight": 0.0, "word_weights": weights} | changed)


def question(text: str, **more: Any) -> Request:
    """A request of these words."""
    return Request(messages=(Message.user(text),), **more)


def drawn(number: int, *, seed: int, noise: float = 0.0) -> list[tuple[str, bool]]:
    """Questions, and whether one call answers them: those for a capital, but for a share that is as it happens."""
    draw = random.Random(seed)
    made = []
    for _ in range(number):
        is_easy = draw.random() < 0.5
        text = draw.choice(EASY if is_easy else HARD).format(f"place {draw.randrange(10**6)} {draw.choice('abcdef')}")
        made.append((text, is_easy if draw.random() >= noise else draw.random() < 0.5))
    return made
