"""Combines the policy and the limits that a request asks for with those of the model."""

from __future__ import annotations

from collections.abc import Sequence

from rl_conductor.conductor import Conductor
from rl_conductor.errors import PolicyError
from rl_conductor.types import Card, Effort
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy, matches_any
from rl_conductor_server.errors import invalid_request

MAX_RULES = 256
"""Maximum number of rules of one kind in the policy of a request; they are checked again for each step."""
EFFORTS: dict[Effort | None, Limits] = {
    "minimal": Limits(steps=1, rounds=1),
    "low": Limits(steps=2, rounds=1),
    "medium": Limits(rounds=1),
    "high": Limits(),
    None: Limits(),
}
"""The limits of each reasoning effort: one call, a short plan, one full plan, or the model's own limits."""


def check_selectors(requested: Policy, conductors: Sequence[Conductor]) -> None:
    """Checks the policy of a request.

    Raises:
        ApiError: it has too many rules, or a selector matches no worker of a conductor that may answer it.
    """
    for name, rules in (("forbid", requested.forbid), ("data_rules", requested.data_rules)):
        if len(rules) > MAX_RULES:
            message = f"policy.{name} has {len(rules):,} rules; at most {MAX_RULES} are allowed"
            raise invalid_request(message, param=f"conductor.policy.{name}")
    cards = [card for conductor in conductors for card in conductor.pool.cards]
    try:
        requested.check_selectors(cards, planners=[conductor.planner.card for conductor in conductors])
    except PolicyError as error:
        raise invalid_request(str(error), param=f"conductor.policy.{error.rule}") from error


def merge_policies(
    model_policy: Policy, requested: Policy | None, cards: Sequence[Card], *, planner: Card | None = None
) -> Policy:
    """Combines two policies so that everything that either forbids is forbidden.

    Args:
        model_policy: the model's own policy.
        requested: the request's policy.
        cards: all workers of the model.
        planner: the model's planner.

    Raises:
        PolicyError: the policies contradict each other.
    """
    if requested is None:
        return model_policy
    policies = (model_policy, requested)
    allowed = frozenset(card.name for card in cards if all(matches_any(policy.allow, card) for policy in policies))
    denied = frozenset(name for name in requested.deny if any(matches_any((name,), card) for card in cards))
    selectable = cards if planner is None else (*cards, planner)
    return Policy(
        allow=allowed,
        # Not as a part of `allow`: it also holds inside of workers that are conductors themselves. In an experiment, a
        # selector may match workers of the other arm only.
        deny=model_policy.deny | denied,
        data_class=_merge_rule("data_class", model_policy.data_class, requested.data_class),
        data_rules=requested.data_rules | model_policy.data_rules,
        forbid=(*model_policy.forbid, *(flow for flow in requested.forbid if flow.is_possible(selectable))),
        verifier=_merge_rule("verifier", model_policy.verifier, requested.verifier),
        final=_merge_rule("final", model_policy.final, requested.final),
        single=_merge_rule("single", model_policy.single, requested.single),
    )


def _merge_rule(rule: str, model_value: str | None, requested: str | None) -> str | None:
    if model_value is not None and requested not in (None, model_value):
        message = f"policy.{rule} is {model_value!r} on this server; a request can't change it to {requested!r}"
        raise PolicyError(message, rule=rule)
    return model_value or requested
