"""Selects the cards of a large pool that the planner sees: those that fit the conversation best. Pure.

The ranking is lexical: a card scores the rarity (inverse document frequency among the cards) of each word that it
shares with the conversation. Words match if their first `STEM_CHARS` letters do, and those of the last message count
twice.
Most of the places go to the best scores, the rest to the highest measured accuracy, for questions whose words no card
mentions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from functools import lru_cache
from math import log

from rl_conductor.prompting.skill_matching import MAX_CACHED_TEXTS
from rl_conductor.prompting.worked_examples import example_workers
from rl_conductor.types import Card, Message
from rl_conductor.workflow.plan_space import PlanSpace

MAX_CARDS = 20
"""Maximum workers that are described to the planner; of a larger pool, the most fitting ones."""
MATCHING_SHARE = 0.75
"""Share of the places for cards that match the words of the conversation, before measured accuracy counts."""
MAX_FINAL_WORKERS = 3
"""Workers shown at least of those that may do the last step, if the policy names them."""
STEM_CHARS = 5
"""Words are compared by this many letters, so that inflected forms match."""
MAX_CHARS = 20_000
"""Characters of the conversation that are compared, from its end."""

_WORD = re.compile(r"[^\W_]{2,}")


def offered_space(space: PlanSpace, cards: Sequence[Card], conversation: Sequence[Message]) -> PlanSpace:
    """Returns `space` with the workers that the planner may choose from: all of them, or the most fitting ones.

    The workers of the worked examples are always among them, and as many as the policy's rules about the last step and
    about attachments need.
    """
    if len(space.choices) <= MAX_CARDS:
        return space
    ranked = _rank([card for card in cards if card.name in space.allowed], conversation)
    names = [card.name for card in ranked]
    required = list(example_workers(space, cards))
    if space.last is not None:
        required += [name for name in names if name in space.last][:MAX_FINAL_WORKERS]
    for rule in space.attachments:
        required += [name for name in names if name in rule.readers][:MAX_FINAL_WORKERS]
    offered = list(dict.fromkeys((*required, *names)))[: max(MAX_CARDS, len(set(required)))]
    return space.model_copy(update={"allowed": frozenset(offered)})


def _rank(cards: Sequence[Card], conversation: Sequence[Message]) -> list[Card]:
    """Sorts cards by how well they fit the conversation; the first `MAX_CARDS` are a mix, as the module describes."""
    scores = _scores(cards, conversation)
    by_score = sorted(cards, key=lambda card: (-scores[card.name], -card.mean_accuracy))
    matching = [card for card in by_score[: int(MATCHING_SHARE * MAX_CARDS)] if scores[card.name] > 0]
    matching_names = {card.name for card in matching}
    others = [card for card in cards if card.name not in matching_names]
    return [*matching, *sorted(others, key=lambda card: (-card.mean_accuracy, -scores[card.name]))]


def _scores(cards: Sequence[Card], conversation: Sequence[Message]) -> dict[str, float]:
    stems = {
        card.name: _card_stems(" ".join((card.name, card.description, card.strengths, *card.accuracy)))
        for card in cards
    }
    frequency = Counter(stem for words in stems.values() for stem in words)
    texts = [message.text for message in conversation]
    question_stems = Counter(_stems("\n".join(texts)[-MAX_CHARS:]))
    question_stems.update(_stems(texts[-1][-MAX_CHARS:] if texts else ""))
    return {
        name: sum(question_stems[stem] * log(len(cards) / frequency[stem]) for stem in words)
        for name, words in stems.items()
    }


@lru_cache(maxsize=MAX_CACHED_TEXTS)
def _card_stems(text: str) -> Collection[str]:
    return _stems(text)


def _stems(text: str) -> Collection[str]:
    return {word[:STEM_CHARS] for word in _WORD.findall(text.casefold())}
