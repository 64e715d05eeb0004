"""Matches workers to the skills that a step needs, by the words on their cards. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import lru_cache

from rl_conductor.types import Card

MAX_CACHED_TEXTS = 4_096
"""Maximum number of cards' texts with cached words."""

_WEAKNESS = re.compile(r"\b(?:poor|bad|weak|not|no|never|cannot|can't|knows no)\b[^;,.]*", re.IGNORECASE)
_WORD = re.compile(r"[a-z]+")


def best_matching(cards: Sequence[Card], skills: Collection[str]) -> list[str]:
    """Returns the names of the workers that match `skills` best; all of them if no card matches.

    Args:
        cards: the cards of the candidates.
        skills: prefixes of words that describe the skills, such as `math`.
    """
    scores = {card.name: _match_score(card, skills) for card in cards}
    best = max(scores.values())
    return [name for name, score in scores.items() if score == best]


def _match_score(card: Card, skills: Collection[str]) -> tuple[int, float]:
    """Returns the number of skills that a card mentions, and its best measured accuracy in one of them."""
    prefixes = tuple(skills)
    accuracies = [accuracy for domain, accuracy in card.accuracy.items() if _count_skills(domain, "", prefixes)]
    return _count_skills(card.name, f"{card.description}; {card.strengths}", prefixes), max(accuracies, default=0.0)


@lru_cache(maxsize=MAX_CACHED_TEXTS)
def _count_skills(name: str, about: str, skills: tuple[str, ...]) -> int:
    """Counts the skills that a card mentions; cached, because each run with a large pool needs the counts again."""
    words = {*_words(name), *_words(_WEAKNESS.sub("", about))}
    return sum(any(word.startswith(skill) for word in words) for skill in skills)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
