"""Our one field beside each API's own: policy, limits, trace and progress of a single request. It can only tighten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from rl_conductor.conductor import Conductor
from rl_conductor.errors import PolicyError
from rl_conductor.types import Card, Effort, Value
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy
from rl_conductor_server.errors import refused

EFFORTS: dict[Effort, Limits] = {
    "minimal": Limits(steps=1, rounds=1),
    "low": Limits(steps=2, rounds=1),
    "medium": Limits(rounds=1),
    "high": Limits(),
}
"""How much may be orchestrated at each effort: one call, a mini plan, one full plan, all that the model allows."""


class Extension(Value):
    """The field `conductor` of a request."""

    policy: Policy | None = None
    """Held beside the server's own; what either forbids is forbidden."""
    limits: Limits | None = None
    """Held beside the model's own; the lower of two holds."""
    trace: Literal["none", "summary", "full"] = "summary"
    """How much of the run the reply carries in its own field `conductor`."""
    progress: Literal["comments", "chunks"] = "comments"
    """How a stream tells of steps: in comments, which every client skips, or in chunks without choices."""


def limits_of(effort: Effort | None) -> Limits:
    """The limits that an effort means."""
    return Limits() if effort is None else EFFORTS[effort]


def tightest(ours: Limits, *asked: Limits | None) -> Limits:
    """`ours`, each lowered to whatever was asked for below it."""
    lowered: dict[str, Any] = {}
    for one in asked:
        for name in one.model_fields_set if one else ():
            wanted, given = getattr(one, name), lowered.get(name, getattr(ours, name))
            lowered[name] = given if wanted is None else wanted if given is None else min(given, wanted)
    return ours.model_copy(update=lowered)


def check_selectors(asked: Policy, sides: Sequence[Conductor]) -> None:
    """See to it that every selector of a request means somebody, on any of the sides that might answer it.

    Raises:
        ApiError: one means nobody.
    """
    cards = [card for side in sides for card in side.pool.cards]
    try:
        asked.check_selectors(cards, planners=[side.planner.card for side in sides])
    except PolicyError as slip:
        raise refused(str(slip), param=f"conductor.policy.{slip.rule}") from slip


def both(
    ours: Policy,
    asked: Policy | None,
    cards: Sequence[Card],
    *,
    planner: Card | None = None,
) -> Policy:
    """The policy under which nothing runs that either forbids.

    Args:
        ours: the model's own.
        asked: the request's.
        cards: of the model's whole pool.
        planner: its planner's.

    Raises:
        PolicyError: they contradict each other.
    """
    if asked is None:
        return ours
    allowed = frozenset(card.name for card in cards if _allows(ours, card) and _allows(asked, card))
    here = cards if planner is None else (*cards, planner)
    return Policy(
        allow=allowed,
        data_class=_one("data_class", ours.data_class, asked.data_class),
        data_rules=asked.data_rules | ours.data_rules,
        forbid=(*ours.forbid, *(flow for flow in asked.forbid if flow.is_possible(here))),
        verifier=_one("verifier", ours.verifier, asked.verifier),
        final=_one("final", ours.final, asked.final),
        single=_one("single", ours.single, asked.single),
    )


def _allows(policy: Policy, card: Card) -> bool:
    return Policy(allow=policy.allow, deny=policy.deny).forbidden_because(card) is None


def _one(rule: str, ours: str | None, asked: str | None) -> str | None:
    if ours is not None and asked not in (None, ours):
        raise PolicyError(f"policy.{rule} is {ours!r} on this server; {asked!r} can't take its place", rule=rule)
    return ours or asked
