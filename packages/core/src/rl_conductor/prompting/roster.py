"""Renders the pool for the planner's prompt, and finds workers that look alike in it."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from rl_conductor._internal.formatting import rates
from rl_conductor.types import Card, Price, Roster
from rl_conductor.workflow.plan_space import PlanSpace

MODEL = "Model {number}"
BRIEF_MODELS = "The models{units}:"
NAME_CHARS = 80
DESCRIPTION_CHARS = 300
"""Maximum characters of a worker's description in the planner's prompt."""
ALL_DESCRIPTIONS_CHARS = 840
"""Characters that the descriptions of all workers share in the roster `cards`."""
MIN_DESCRIPTION_CHARS = 100
"""Characters that each of them has at least."""
MAX_DOMAINS = 4
"""Domains of a card's accuracy that are shown in the roster `cards`, the best ones."""

_PLAIN_NAME = re.compile(rf"[\w.-]{{1,{NAME_CHARS}}}")
_EMPTY_NAME = re.compile(
    r"(?:(?:worker|model|agent|llm|assistant|node|expert|chat|bot)s?)?[\s_.-]*(?:\d*|[a-z])", re.IGNORECASE
)
"""Matches uninformative names such as `a`, `agent` or `model_2`."""


def roster_text(space: PlanSpace, cards: Sequence[Card], roster: Roster) -> str:
    """Renders the allowed workers with their numbers, one per line."""
    lines = []
    for number, card in enumerate(cards):
        if card.name in space.allowed:
            name = f" {json.dumps(_line(card.name, NAME_CHARS), ensure_ascii=False)}" if roster == "cards" else ""
            facts = "" if roster == "ordinals" else _card_text(card, described=roster == "cards")
            lines.append(MODEL.format(number=number) + name + (f": {facts}" if facts else ""))
    return "\n".join(lines)


def brief_roster(space: PlanSpace, cards: Sequence[Card]) -> str:
    """Renders the allowed workers with names and in few tokens, under a heading that explains the numbers on cards."""
    allowed = [(number, card) for number, card in enumerate(cards) if card.name in space.allowed]
    chars = max(MIN_DESCRIPTION_CHARS, min(DESCRIPTION_CHARS, ALL_DESCRIPTIONS_CHARS // max(1, len(allowed))))
    lines = [BRIEF_MODELS.format(units=_units([card for _, card in allowed]))]
    for number, card in allowed:
        facts = "; ".join(dict.fromkeys(_brief_facts(card, chars)))
        lines.append(f"{number} {_quoted_name(card)}" + (f": {facts}" if facts else ""))
    return "\n".join(lines)


def _quoted_name(card: Card) -> str:
    if _PLAIN_NAME.fullmatch(card.name):
        return card.name
    return json.dumps(_line(card.name, NAME_CHARS), ensure_ascii=False)


def _units(cards: Sequence[Card]) -> str:
    """Explains the numbers on the cards, as far as there are any."""
    units = (
        (any(card.accuracy for card in cards), "accuracy in %"),
        (any(card.price is not None for card in cards), "$ per million tokens in/out"),
        (any(card.latency is not None for card in cards), "seconds"),
    )
    present = ", ".join(unit for is_present, unit in units if is_present)
    return f" ({present})" if present else ""


def _brief_facts(card: Card, chars: int) -> Iterator[str]:
    about = list(dict.fromkeys(filter(None, (_line(text, chars) for text in (card.description, card.strengths)))))
    if len(about) == 2:  # each gets at least half of the place
        about = [
            _line(about[0], max(chars // 2, chars - len(about[1]))),
            _line(about[1], max(chars // 2, chars - len(about[0]))),
        ]
    if about:
        yield "; ".join(about)
    if card.accuracy:
        best = sorted(card.accuracy.items(), key=lambda item: -item[1])[:MAX_DOMAINS]
        yield ", ".join(f"{domain} {100 * accuracy:.0f}" for domain, accuracy in best)
    if card.price is not None:
        yield rates(card.price)
    if card.latency is not None:
        yield f"{card.latency:.1f} s" if card.latency < 2 else f"{card.latency:.0f} s"


def indistinguishable(cards: Sequence[Card]) -> list[tuple[str, ...]]:
    """Returns groups of workers, by name, that a planner can't tell apart by their cards.

    Workers without a description or strengths count only if their names are uninformative, too.
    """
    groups: dict[tuple[str, bool], list[str]] = defaultdict(list)
    for card in cards:
        is_described = bool(card.description or card.strengths)
        if is_described or _EMPTY_NAME.fullmatch(card.name):
            groups[_card_text(card, described=True), is_described].append(card.name)
    return [tuple(names) for names in groups.values() if len(names) > 1]


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
        yield "right on " + ", ".join(f"{domain} {accuracy:.0%}" for domain, accuracy in card.accuracy.items())
    if card.price is not None:
        yield _price_text(card.price)
    if card.latency is not None:
        yield f"about {card.latency:.1f} s a call"


def _line(text: str, max_chars: int) -> str:
    """Joins `text` into one line and truncates it to `max_chars` characters."""
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"


def _price_text(price: Price) -> str:
    if price.is_free:
        return "free"
    per_call = f" and ${price.per_call:f} a call" if price.per_call else ""
    return f"${price.input:f} in and ${price.output:f} out per million tokens{per_call}"
