"""Who may do what: `Policy`, and how it becomes the `PlanSpace` of one request. Pure.

A policy never trusts the Conductor: the grammar decodes only what the space allows, the parser's result is
checked against it, and the executor asks it again before it puts another worker in a failed one's place.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from rl_conductor.errors import PolicyError
from rl_conductor.types import Card, Names, Value
from rl_conductor.workflow.workflow import AccessMode, PlanSpace

Selector = str
"""A worker's name, `tag:NAME`, `region:NAME`, or `*` for every worker."""


class DataRule(Value):
    """Where data of one class may go."""

    tags: Names = frozenset()
    """Tags that a worker must all carry."""
    regions: Names | None = None
    """Regions of which a worker must be in one; `None` allows any."""


class Flow(Value):
    """A forbidden flow of information: nothing that came from `source` may reach `reader`."""

    reader: Selector
    source: Selector

    def is_possible(self, cards: Sequence[Card]) -> bool:
        """Whether it means somebody of these on both sides."""
        return all(any(_matches(selector, card) for card in cards) for selector in (self.reader, self.source))


class Policy(Value):
    """What a request allows. The default allows everything."""

    allow: Names = frozenset({"*"})
    """Selectors of workers."""
    deny: Names = frozenset()
    """Wins over `allow`."""
    data_class: str | None = None
    """The class of the user's own data in this request; one of `data_rules`."""
    data_rules: dict[str, DataRule] = Field(default_factory=dict)
    forbid: tuple[Flow, ...] = ()
    verifier: str | None = None
    """A worker that must do the last step, after at least one other, and see every earlier reply."""
    final: str | None = None
    """A worker that must do the last step."""
    single: str | None = None
    """Kill switch for orchestration: this one worker answers, and nothing is planned."""

    @property
    def pinned(self) -> str | None:
        """The worker that must give the answer, by whichever rule; `None` leaves it open."""
        return self.single or self.verifier or self.final

    def check_selectors(self, cards: Sequence[Card], *, planners: Sequence[Card] = ()) -> None:
        """See to it that every selector means somebody: one that is misspelt would keep nobody out.

        Args:
            cards: of the whole pool, not just of those whom some rule leaves.
            planners: of whoever may plan: flow rules may name them, too.

        Raises:
            PolicyError: one means nobody; `rule` names the field.
        """
        flows = frozenset(selector for flow in self.forbid for selector in (flow.reader, flow.source))
        for rule, selectors, known in (
            ("allow", self.allow, cards),
            ("deny", self.deny, cards),
            ("forbid", flows, (*cards, *planners)),
        ):
            for selector in sorted(selectors):
                if not any(_matches(selector, card) for card in known):
                    there = ", ".join(_selectors(known))
                    raise PolicyError(f"policy.{rule} names {selector!r}, but there are only {there}", rule=rule)

    def forbidden_because(self, card: Card) -> str | None:
        """The rule that keeps this worker out, in words; `None` when it may work."""
        if self.single is not None and card.name != self.single:
            return f"policy.single is {self.single!r}"
        if any(_matches(selector, card) for selector in self.deny):
            return "policy.deny names it"
        if not any(_matches(selector, card) for selector in self.allow):
            return "policy.allow does not name it"
        return self.data_refused_because(card)

    def data_refused_because(self, card: Card) -> str | None:
        """The data rule that keeps the user's data from this model, in words; `None` when it may see it."""
        if self.data_class is None:
            return None
        rule = self.data_rules.get(self.data_class)
        if rule is None:
            known = ", ".join(sorted(self.data_rules)) or "none"
            raise PolicyError(
                f"policy.data_class is {self.data_class!r}, but policy.data_rules has {known}", rule="data_class"
            )
        missing = rule.tags - card.tags
        if missing:
            return f"data of class {self.data_class!r} needs a worker tagged {', '.join(sorted(missing))}"
        if rule.regions is not None and card.region not in rule.regions:
            where = ", ".join(sorted(rule.regions))
            return f"data of class {self.data_class!r} must stay in {where}, not {card.region or 'an unknown region'}"
        return None

    def may_read(self, reader: Card, source: Card) -> bool:
        """Whether content of `source` may reach `reader`."""
        return not any(_matches(flow.reader, reader) and _matches(flow.source, source) for flow in self.forbid)

    def space(
        self,
        cards: Sequence[Card],
        *,
        max_steps: int = 5,
        access: AccessMode = "binary",
    ) -> PlanSpace:
        """The workflows that this policy lets run over workers of these `cards`.

        Raises:
            PolicyError: no workflow at all could run; `rule` names the field to change.
        """
        refused = {card.name: why for card in cards if (why := self.forbidden_because(card))}
        allowed = frozenset(card.name for card in cards) - refused.keys()
        last = self._last_worker(allowed, refused)
        if not allowed:
            reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
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
            unreadable=self._unreadable(cards),
            last=None if last is None else frozenset({last}),
            last_reads_all=verified,
        )

    def _unreadable(self, cards: Sequence[Card]) -> frozenset[tuple[str, str]]:
        if not self.forbid:
            return frozenset()
        return frozenset((a.name, b.name) for a in cards for b in cards if not self.may_read(a, b))

    def _last_worker(self, allowed: frozenset[str], refused: dict[str, str]) -> str | None:
        named = {"single": self.single, "verifier": self.verifier, "final": self.final}
        wanted = {rule: name for rule, name in named.items() if name is not None}
        for rule, name in wanted.items():
            if name not in allowed:
                known = ", ".join(sorted(allowed | refused.keys()))
                why = refused.get(name, f"the pool has only {known}")
                raise PolicyError(f"policy.{rule} is {name!r}, which can't work: {why}", rule=rule)
        if len(set(wanted.values())) > 1:
            clash = " and ".join(f"policy.{rule}={name!r}" for rule, name in wanted.items())
            raise PolicyError(f"{clash} can't all do the last step", rule=next(iter(wanted)))
        return self.pinned


def _selectors(cards: Sequence[Card]) -> list[Selector]:
    """Every selector that means one of these, but for `*`."""
    tags = sorted({f"tag:{tag}" for card in cards for tag in card.tags})
    regions = sorted({f"region:{card.region}" for card in cards if card.region is not None})
    return [*dict.fromkeys(card.name for card in cards), *tags, *regions]


def _matches(selector: Selector, card: Card) -> bool:
    kind, colon, name = selector.partition(":")
    if selector in ("*", card.name):
        return True
    if colon and kind == "tag":
        return name in card.tags
    return bool(colon) and kind == "region" and name == card.region
