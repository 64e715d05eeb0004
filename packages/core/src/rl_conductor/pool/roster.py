"""Describes the pool to the planner, a line for each worker, and finds the worker that suits a worked example. Pure."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from rl_conductor.types import Card, Price, Roster
from rl_conductor.workflow.workflow import PlanSpace

MODEL = "Model {number}"
NAME_CHARS = 80
DESCRIPTION_CHARS = 300
"""How much of a worker's description the planner reads."""

_WEAKNESS = re.compile(r"\b(?:poor|bad|weak|not|no|never|cannot|can't|knows no)\b[^;,.]*", re.IGNORECASE)
_WORD = re.compile(r"[a-z]+")
_EMPTY_NAME = re.compile(
    r"(?:(?:worker|model|agent|llm|assistant|node|expert|chat|bot)s?)?[\s_.-]*(?:\d*|[a-z])", re.IGNORECASE
)
"""Names that say nothing, such as `a`, `agent` or `model_2`."""


def roster_text(space: PlanSpace, cards: Sequence[Card], roster: Roster) -> str:
    """The allowed workers, a line each, by number."""
    lines = []
    for number, card in enumerate(cards):
        if card.name in space.allowed:
            named = f" {json.dumps(_line(card.name, NAME_CHARS), ensure_ascii=False)}" if roster == "cards" else ""
            known = "" if roster == "ordinals" else _card_text(card, described=roster == "cards")
            lines.append(MODEL.format(number=number) + named + (f": {known}" if known else ""))
    return "\n".join(lines)


def indistinguishable(cards: Sequence[Card]) -> list[tuple[str, ...]]:
    """The names of workers that `cards` tells nothing to choose between: equal facts, and names that say nothing."""
    alike: dict[tuple[str, bool], list[str]] = defaultdict(list)
    for card in cards:
        says_nothing = _EMPTY_NAME.fullmatch(card.name) is not None
        if says_nothing or card.description or card.strengths:
            alike[_card_text(card, described=True), bool(card.description or card.strengths)].append(card.name)
    return [tuple(names) for names in alike.values() if len(names) > 1]


def suited(cards: Sequence[Card], skills: Collection[str]) -> list[str]:
    """The workers whose cards fit `skills` best, in their order; all of them when no card says anything of these.

    Args:
        cards: of the workers to choose among.
        skills: beginnings of words that name what is needed, such as `math`.
    """
    fits = {card.name: _fit(card, skills) for card in cards}
    best = max(fits.values())
    return [name for name, fit in fits.items() if fit == best]


def _fit(card: Card, skills: Collection[str]) -> tuple[int, float]:
    """How many of the skills a card names, and the best measured accuracy in one of them."""
    about = _WEAKNESS.sub("", f"{card.description}; {card.strengths}")
    words = {*_words(card.name), *_words(about)}
    measured = [share for domain, share in card.accuracy.items() if _names(_words(domain), skills)]
    return len(_names(words, skills)), max(measured, default=0.0)


def _names(words: Collection[str], skills: Collection[str]) -> list[str]:
    return [skill for skill in skills if any(word.startswith(skill) for word in words)]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _card_text(card: Card, *, described: bool) -> str:
    return "; ".join(dict.fromkeys(_facts(card, described=described)))


def _facts(card: Card, *, described: bool) -> Iterator[str]:
    if described and card.description:
        yield _line(card.description, DESCRIPTION_CHARS)
    if card.strengths:
        yield _line(card.strengths, DESCRIPTION_CHARS) if described else card.strengths
    elif card.description and not described:
        yield _line(card.description, DESCRIPTION_CHARS)
    if card.accuracy:
        yield "right on " + ", ".join(f"{domain} {share:.0%}" for domain, share in card.accuracy.items())
    if card.price is not None:
        yield _price_text(card.price)
    if card.latency is not None:
        yield f"about {card.latency:.1f} s a call"


def _line(text: str, most: int) -> str:
    """`text` on one line, since the next one is about another worker, and no longer than `most` characters."""
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _price_text(price: Price) -> str:
    if not (price.input or price.output or price.per_call):
        return "free"
    each = f" and ${price.per_call:f} a call" if price.per_call else ""
    return f"${price.input:f} in and ${price.output:f} out per million tokens{each}"
