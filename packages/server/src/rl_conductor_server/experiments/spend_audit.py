"""What logged calls add up to: tokens and dollars a query, how queries failed, and how many look simple. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from statistics import quantiles

from rl_conductor.types import Usage, Value, total
from rl_conductor_server.experiments.log_formats import Logged

SIMPLE_INPUT, SIMPLE_OUTPUT = 1_000, 300
"""Tokens of a query that looks simple, at most; besides, it took one call that used no tool and did not fail."""
LOOP = 3
"""How often the same tool, called with the same arguments, makes a loop."""


@dataclass
class Query:
    """The calls that worked at one question."""

    calls: list[Logged] = field(default_factory=list)

    @property
    def usage(self) -> Usage:
        """What all of them used."""
        return total(call.usage for call in self.calls)

    @property
    def failures(self) -> frozenset[str]:
        """How it failed on its way, by the names of `FAILURES`."""
        asked = Counter(call.request for call in self.calls)
        tools = Counter(name for call in self.calls for name in call.tool_calls)
        states = {
            "error": any(call.error for call in self.calls),
            "empty": any(not call.said and not call.error for call in self.calls),
            "cut off": any(call.cut_off for call in self.calls),
            "retried": any(times > 1 for times in asked.values()),
            "loop": any(times >= LOOP for times in tools.values()),
        }
        return frozenset(name for name, is_so in states.items() if is_so)

    @property
    def looks_simple(self) -> bool:
        """Whether one short call did it."""
        usage = self.usage
        short = usage.input_tokens <= SIMPLE_INPUT and usage.output_tokens <= SIMPLE_OUTPUT
        return len(self.calls) == 1 and short and not self.calls[0].tool_calls and not self.failures

    def is_answered(self, request: str) -> bool:
        """Whether this very request was answered already."""
        return any(call.request == request and call.said and not call.error for call in self.calls)


FAILURES = {
    "error": "a call ended with an error",
    "empty": "a reply had neither text nor a tool call",
    "cut off": "a reply ended for want of tokens",
    "retried": "the same request was sent again before it was answered",
    "loop": f"the same tool was called {LOOP} times or more with the same arguments",
}


def queries(calls: Iterable[Logged]) -> list[Query]:
    """Calls by the question that they worked at; asking again what was answered is a new question."""
    made: list[Query] = []
    current: dict[str, Query] = {}
    for call in calls:
        known = current.get(call.query)
        if known is None or known.is_answered(call.request):
            known = current[call.query] = Query()
            made.append(known)
        known.calls.append(call)
    return made


class Spread(Value):
    """An amount a query: on average, in the middle, and in the dearest twentieth."""

    mean: float
    p50: float
    p95: float

    @classmethod
    def of(cls, amounts: Sequence[float]) -> Spread:
        """Of at least one amount."""
        ranks = quantiles(amounts, n=20, method="inclusive") if len(amounts) > 1 else [amounts[0]] * 19
        return cls(mean=sum(amounts) / len(amounts), p50=ranks[9], p95=ranks[18])


class Share(Value):
    """Some of the queries, and what they used."""

    queries: int
    calls: int
    usage: Usage

    @classmethod
    def of(cls, some: Sequence[Query]) -> Share:
        """Of these."""
        used = total(query.usage for query in some)
        return cls(queries=len(some), calls=sum(len(query.calls) for query in some), usage=used)


class SpendingReport(Value):
    """The report."""

    whole: Share
    tokens: Spread
    """Read and written, a query."""
    dollars: Spread
    """A query, of those whose price is known."""
    models: Mapping[str, Share]
    """By the model of a query's first call, the dearest first."""
    failures: Mapping[str, Share]
    """By the names of `FAILURES`; a query may be in several."""
    failed: Share
    """Those in any."""
    simple: Share


def spending(made: Sequence[Query]) -> SpendingReport:
    """What these queries add up to; there must be one."""
    models = {query.calls[0].model: None for query in made}
    shares = {name: Share.of([one for one in made if one.calls[0].model == name]) for name in models}
    dearest = sorted(shares, key=lambda name: (-shares[name].usage.cost, name))
    priced = [query.usage.cost for query in made if not query.usage.unpriced_calls] or [Decimal(0)]
    return SpendingReport(
        whole=Share.of(made),
        tokens=Spread.of([float(query.usage.total_tokens) for query in made]),
        dollars=Spread.of(list(map(float, priced))),
        models={name: shares[name] for name in dearest},
        failures={name: Share.of([one for one in made if name in one.failures]) for name in FAILURES},
        failed=Share.of([one for one in made if one.failures]),
        simple=Share.of([one for one in made if one.looks_simple]),
    )
