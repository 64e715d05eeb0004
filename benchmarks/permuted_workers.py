"""Lists the workers of a question in another order and in other words, so that a planner has to read their cards.

The scores stay valid: a worker does the same work wherever it is listed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from rl_conductor.types import Card
from rl_conductor_training.train.prompt_instances import reasoning_prefix
from rl_conductor_training.train.reward_table.table import TableQuestion


def permute_workers(
    question: TableQuestion,
    cards: Sequence[Card],
    *,
    wordings: Mapping[str, Sequence[str]],
    roles: Mapping[str, str],
    rng: random.Random,
) -> TableQuestion:
    """Returns the question with the workers in a random order.

    Args:
        question: the question and its scored plans.
        cards: the workers of its plans.
        wordings: by worker, texts of its strengths, of which one is chosen; other workers keep their own.
        roles: by worker, its role in a word or two, for a line of reasoning before each plan; empty for none.
        rng: decides the order and the wordings.
    """
    shuffled = tuple(
        card.model_copy(update={"strengths": rng.choice(wordings[card.name])}) if wordings.get(card.name) else card
        for card in rng.sample(cards, len(cards))
    )
    names = [card.name for card in shuffled]
    plans = tuple(
        plan.model_copy(update={"reasoning": reasoning_prefix(plan.workflow, names, roles)}) if roles else plan
        for plan in question.plans
    )
    return question.model_copy(update={"cards": shuffled, "plans": plans})
