"""Reports the cost per query of logged calls, the failures, and the share of simple queries. Performs no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property

from rl_conductor.types import Usage, Value, total
from rl_conductor_server.distribution import Distribution
from rl_conductor_server.spend_audit.log_formats import LoggedCall

MAX_SIMPLE_INPUT, MAX_SIMPLE_OUTPUT = 1_000, 300
"""Maximum number of tokens of a query that looks simple."""
LOOP_CALLS = 3
"""Number of calls of one tool with the same arguments that count as a loop."""


@dataclass
class Query:
    """All calls that work on one user query."""

    calls: list[LoggedCall] = field(default_factory=list)
    answered_requests: set[str] = field(default_factory=set)
    """The requests that got a reply."""

    @property
    def usage(self) -> Usage:
        """The usage of all calls."""
        return total(call.usage for call in self.calls)

    @cached_property
    def failures(self) -> frozenset[str]:
        """The kinds of failure on the way to the answer, as keys of `FAILURES`."""
        requests = Counter(call.request for call in self.calls)
        tools = Counter(tool for call in self.calls for tool in call.tool_calls)
        occurred = {
            "error": any(call.error for call in self.calls),
            "empty": any(not call.has_reply and not call.error for call in self.calls),
            "cut off": any(call.is_truncated for call in self.calls),
            "retried": any(count > 1 for count in requests.values()),
            "loop": any(count >= LOOP_CALLS for count in tools.values()),
        }
        return frozenset(kind for kind, has_occurred in occurred.items() if has_occurred)

    @property
    def looks_simple(self) -> bool:
        """Whether it took a single short call without tools or failures."""
        usage = self.usage
        is_short = usage.input_tokens <= MAX_SIMPLE_INPUT and usage.output_tokens <= MAX_SIMPLE_OUTPUT
        return len(self.calls) == 1 and is_short and not self.calls[0].tool_calls and not self.failures

    def add(self, call: LoggedCall) -> None:
        """Adds a call, and its request to those with a reply."""
        self.calls.append(call)
        if call.has_reply and not call.error:
            self.answered_requests.add(call.request)


FAILURES = {
    "error": "a call ended with an error",
    "empty": "a reply had neither text nor a tool call",
    "cut off": "a reply reached a token limit",
    "retried": "the same request was sent again before it was answered",
    "loop": f"the same tool was called {LOOP_CALLS} times or more with the same arguments",
}


def group_into_queries(calls: Iterable[LoggedCall]) -> list[Query]:
    """Groups calls by user query; repeating a request that was answered starts a new query."""
    queries: list[Query] = []
    newest: dict[str, Query] = {}
    for call in calls:
        query = newest.get(call.query)
        if query is None or call.request in query.answered_requests:
            query = newest[call.query] = Query()
            queries.append(query)
        query.add(call)
    return queries


class QueryTotals(Value):
    """Totals over a group of queries."""

    queries: int
    calls: int
    usage: Usage

    @classmethod
    def of(cls, queries: Sequence[Query]) -> QueryTotals:
        """Adds up the queries."""
        usage = total(query.usage for query in queries)
        return cls(queries=len(queries), calls=sum(len(query.calls) for query in queries), usage=usage)


class SpendingReport(Value):
    """The report of `audit-spend`."""

    overall: QueryTotals
    tokens: Distribution
    """Input and output tokens per query."""
    dollars: Distribution
    """US dollars per query, of the queries whose cost is known."""
    models: Mapping[str, QueryTotals]
    """Totals by the model of a query's first call, most expensive first."""
    failures: Mapping[str, QueryTotals]
    """Totals by kind of failure, the keys of `FAILURES`; a query may be in several."""
    failed: QueryTotals
    """Queries with at least one failure."""
    simple: QueryTotals


def report_spending(queries: Sequence[Query]) -> SpendingReport:
    """Builds the report of at least one query."""
    models = {query.calls[0].model: None for query in queries}
    by_model = {name: QueryTotals.of([query for query in queries if query.calls[0].model == name]) for name in models}
    by_cost = sorted(by_model, key=lambda name: (-by_model[name].usage.cost, name))
    costs = [query.usage.cost for query in queries if not query.usage.unpriced_calls] or [Decimal(0)]
    return SpendingReport(
        overall=QueryTotals.of(queries),
        tokens=Distribution.of([float(query.usage.total_tokens) for query in queries]),
        dollars=Distribution.of(list(map(float, costs))),
        models={name: by_model[name] for name in by_cost},
        failures={name: QueryTotals.of([query for query in queries if name in query.failures]) for name in FAILURES},
        failed=QueryTotals.of([query for query in queries if query.failures]),
        simple=QueryTotals.of([query for query in queries if query.looks_simple]),
    )
