"""`Policy`, and its conversion into the `PlanSpace` of one request. Pure.

A policy does not rely on the Conductor: the grammar decodes only plans that the space allows, the parser checks its
result against the space, and the executor checks again before it replaces a failed worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import Field

from rl_conductor.errors import PolicyError
from rl_conductor.types import Card, Names
from rl_conductor.types.value import UserValue
from rl_conductor.workflow.plan_space import AccessMode, PlanSpace

Selector = str
"""A worker's name, `tag:NAME`, `region:NAME`, or `*` for every worker."""


class DataRule(UserValue):
    """The workers that may see data of one class."""

    tags: Names = frozenset()
    """Tags that a worker must have, all of them."""
    regions: Names | None = None
    """Regions in which a worker may be; `None` allows any."""


class Flow(UserValue):
    """A forbidden flow of information: nothing that came from `source` may reach `reader`."""

    reader: Selector
    """Selects the workers that must not read the content of `source`."""
    source: Selector
    """Selects the workers whose replies, and what was written from them, must not reach `reader`."""

    def is_possible(self, cards: Sequence[Card]) -> bool:
        """Returns whether both selectors match at least one of `cards`."""
        return all(any(_matches(selector, card) for card in cards) for selector in (self.reader, self.source))


class Policy(UserValue):
    """Restricts the workers and data flows of a request. The default allows everything.

    Examples:
        ```python
        from rl_conductor import DataRule, Flow, Policy

        policy = Policy(
            deny={"tag:experimental"},
            data_class="personal",  # the planner and the workers must be in the EU
            data_rules={"personal": DataRule(regions={"eu"})},
            forbid=[Flow(reader="writer", source="crm")],  # nothing from `crm` may reach `writer`
        )
        ```
    """

    allow: Names = frozenset({"*"})
    """Selectors of the workers that may be used."""
    deny: Names = frozenset()
    """Selectors of forbidden workers; takes precedence over `allow`."""
    data_class: str | None = None
    """The class of the user's own data in this request; one of `data_rules`."""
    data_rules: dict[str, DataRule] = Field(default_factory=dict)
    """The requirements on workers, by class of data."""
    forbid: tuple[Flow, ...] = ()
    """Flows between workers that no plan may contain, not even through other steps."""
    verifier: str | None = None
    """A worker that must do the last step, after at least one other, and see every earlier reply."""
    final: str | None = None
    """A worker that must do the last step."""
    single: str | None = None
    """Kill switch for orchestration: this one worker answers, and nothing is planned."""

    @property
    def pinned(self) -> str | None:
        """The worker that must give the answer (`single`, `verifier` or `final`); `None` if any may."""
        return self.single or self.verifier or self.final

    def check_selectors(self, cards: Sequence[Card], *, planners: Sequence[Card] = ()) -> None:
        """Checks that every selector matches a worker, since a misspelt one would have no effect.

        Args:
            cards: the cards of the whole pool, including forbidden workers.
            planners: the cards of the planners, which flow rules may name as well.

        Raises:
            PolicyError: a selector matches nothing; `rule` names the field.
        """
        flows = frozenset(selector for flow in self.forbid for selector in (flow.reader, flow.source))
        for rule, selectors, candidates in (
            ("allow", self.allow, cards),
            ("deny", self.deny, cards),
            ("forbid", flows, (*cards, *planners)),
        ):
            for selector in sorted(selectors):
                if not any(_matches(selector, card) for card in candidates):
                    valid = ", ".join(_selectors(candidates))
                    raise PolicyError(f"policy.{rule} names {selector!r}, but there are only {valid}", rule=rule)

    def denial_reason(self, card: Card) -> str | None:
        """Describes the rule that forbids this worker; `None` when it is allowed."""
        if self.single is not None and card.name != self.single:
            return f"policy.single is {self.single!r}"
        if matches_any(self.deny, card):
            return "policy.deny names it"
        if not matches_any(self.allow, card):
            return "policy.allow does not name it"
        return self.data_denial_reason(card)

    def data_denial_reason(self, card: Card) -> str | None:
        """Describes the data rule that forbids this model to see the user's data; `None` when it is allowed."""
        if self.data_class is None:
            return None
        rule = self.data_rules.get(self.data_class)
        if rule is None:
            defined = ", ".join(sorted(self.data_rules)) or "none"
            raise PolicyError(
                f"policy.data_class is {self.data_class!r}, but policy.data_rules has {defined}", rule="data_class"
            )
        missing = rule.tags - card.tags
        if missing:
            return f"data of class {self.data_class!r} needs a worker tagged {', '.join(sorted(missing))}"
        if rule.regions is not None and card.region not in rule.regions:
            where = ", ".join(sorted(rule.regions))
            return f"data of class {self.data_class!r} must stay in {where}, not {card.region or 'an unknown region'}"
        return None

    @property
    def applies_to_nested_runs(self) -> bool:
        """Whether it has rules that hold inside of workers that are conductors themselves."""
        return bool(self.deny) or self.data_class is not None

    def within(self, outer: Sequence[Policy], cards: Sequence[Card], planner: Card) -> Policy:
        """Adds the rules of the runs around a nested run: denied workers, and where the user's data may go.

        `allow`, `forbid`, `verifier`, `final` and `single` name workers of the outer pool and are not added.

        Args:
            outer: the policies of the runs around.
            cards: the cards of the nested conductor's pool.
            planner: the card of its planner.

        Raises:
            PolicyError: its planner may not see the user's data.
        """
        if not outer:
            return self
        denied = {
            card.name
            for policy in outer
            for card in cards
            if matches_any(policy.deny, card) or policy.data_denial_reason(card)
        }
        for reason in filter(None, (policy.data_denial_reason(planner) for policy in outer)):
            raise PolicyError(
                f"the planner of a nested conductor may not see this request: {reason}", rule="data_class"
            )
        return self.model_copy(update={"deny": self.deny | denied}) if denied else self

    def may_read(self, reader: Card, source: Card) -> bool:
        """Returns whether content of `source` may reach `reader`."""
        return not any(_matches(flow.reader, reader) and _matches(flow.source, source) for flow in self.forbid)

    def flow_denial_reason(self, reader: Card, sources: Sequence[Card]) -> str | None:
        """Describes the flow rule that forbids `reader` to see content of `sources`; `None` when it may."""
        forbidden = (source.name for source in sources if not self.may_read(reader, source))
        return next((f"policy.forbid keeps what {name!r} wrote from {reader.name!r}" for name in forbidden), None)

    def space(
        self,
        cards: Sequence[Card],
        *,
        max_steps: int = 5,
        access: AccessMode = "binary",
    ) -> PlanSpace:
        """Computes the workflows that this policy allows for workers with these `cards`.

        Raises:
            PolicyError: the policy allows no workflow; `rule` names the field to change.
        """
        refused = {card.name: reason for card in cards if (reason := self.denial_reason(card))}
        allowed = frozenset(card.name for card in cards) - refused.keys()
        last = self._last_worker(allowed, refused)
        if not allowed:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
            raise PolicyError(f"the policy leaves no worker to do anything ({reasons})", rule="allow")
        verified = self.verifier is not None
        if verified and max_steps < 2:
            raise PolicyError(
                f"policy.verifier needs 2 steps or more, but limits.steps is {max_steps}", rule="verifier"
            )
        return PlanSpace(
            roster=tuple(card.name for card in cards),
            allowed=allowed,
            max_steps=1 if self.single else max_steps,
            min_steps=2 if verified else 1,
            access=access,
            forbidden_flows=self._forbidden_flows(cards),
            last=None if last is None else frozenset({last}),
            last_reads_all=verified,
        )

    def _forbidden_flows(self, cards: Sequence[Card]) -> frozenset[tuple[str, str]]:
        if not self.forbid:
            return frozenset()
        return frozenset((a.name, b.name) for a in cards for b in cards if not self.may_read(a, b))

    def _last_worker(self, allowed: frozenset[str], refused: dict[str, str]) -> str | None:
        rules = {"single": self.single, "verifier": self.verifier, "final": self.final}
        required = {rule: name for rule, name in rules.items() if name is not None}
        for rule, name in required.items():
            if name not in allowed:
                workers = ", ".join(sorted(allowed | refused.keys()))
                reason = refused.get(name, f"the pool has only {workers}")
                raise PolicyError(f"policy.{rule} is {name!r}, which can't work: {reason}", rule=rule)
        if len(set(required.values())) > 1:
            clash = " and ".join(f"policy.{rule}={name!r}" for rule, name in required.items())
            raise PolicyError(f"{clash} can't all do the last step", rule=next(iter(required)))
        return self.pinned


def _selectors(cards: Sequence[Card]) -> list[Selector]:
    """Lists every selector but `*` that matches one of `cards`."""
    tags = sorted({f"tag:{tag}" for card in cards for tag in card.tags})
    regions = sorted({f"region:{card.region}" for card in cards if card.region is not None})
    return [*dict.fromkeys(card.name for card in cards), *tags, *regions]


def matches_any(selectors: Iterable[Selector], card: Card) -> bool:
    """Returns whether one of the selectors matches a worker."""
    return any(_matches(selector, card) for selector in selectors)


def _matches(selector: Selector, card: Card) -> bool:
    kind, colon, name = selector.partition(":")
    if selector in ("*", card.name):
        return True
    if colon and kind == "tag":
        return name in card.tags
    return bool(colon) and kind == "region" and name == card.region
