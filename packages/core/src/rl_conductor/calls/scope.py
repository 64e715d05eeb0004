"""The model call that the running code is part of, so that runs inside of a call share its budget and report to it.

A model may be a conductor, or an agent of a host framework that contains one. The `Model` protocol has no parameter for
the run around the call, so a context variable carries it. The limit of a reply, which adapters read, has another one in
`models.replies.size`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl_conductor.calls.budget import Amount, Budget, Reservation
from rl_conductor.calls.nested_records import NestedRecords
from rl_conductor.calls.nested_runs import NestedRuns
from rl_conductor.trace.trace import Call, Round, Trace
from rl_conductor.types import Usage
from rl_conductor.workflow.policy import Policy

if TYPE_CHECKING:
    from rl_conductor.guardrails.base import Guardrail


@dataclass(slots=True)
class CallScope:
    """The budget, reservation and usage list of a model call; empty outside of any call."""

    budget: Budget | None = None
    """The budget that nested runs spend from as well."""
    reservation: Reservation | None = None
    """The reservation of the call, which nested runs release because their own calls are reserved."""
    nested_usage: list[Usage] | None = None
    """Collects the usage of nested runs, however they end."""
    beyond_usage: list[Amount] | None = None
    """Collects the charges for nested calls in addition to their usage."""
    nested: NestedRecords | None = None
    """Collects the nested calls, tools and runs for the trace."""
    runs: NestedRuns | None = None
    """The nested runs in progress."""
    slot: AbstractAsyncContextManager[object] | None = None
    """The slot of the worker, which an agent takes for each call of its base model."""
    guardrails: Sequence[Guardrail] = ()
    """Guardrails of the run around the call, which nested runs apply to their workers' prompts and replies."""
    policies: tuple[Policy, ...] = ()
    """The policies of the runs around, whose rules hold for nested runs as well."""


current_scope: ContextVar[CallScope] = ContextVar("current_scope", default=CallScope())  # noqa: B039  (nobody changes it)
"""The scope of the innermost call that the running code is part of."""


@contextmanager
def call_scope(
    budget: Budget | None = None, reservation: Reservation | None = None, nested_usage: list[Usage] | None = None
) -> Iterator[None]:
    """Makes runs that start in this block part of a call with this budget, reservation and usage list."""
    token = current_scope.set(CallScope(budget, reservation, nested_usage))
    try:
        yield
    finally:
        current_scope.reset(token)


def track_run(budget: Budget) -> AbstractContextManager[None]:
    """Ends the run in this block, which spends from `budget`, together with the call that it is part of.

    Raises:
        LimitError: the call was cancelled.
    """
    runs = current_scope.get().runs
    return nullcontext() if runs is None else runs.track(budget)


def report_usage(usages: Iterable[Usage]) -> None:
    """Reports usage to the call that this code is part of, if there is one."""
    nested_usage = current_scope.get().nested_usage
    if nested_usage is not None:
        nested_usage.extend(usages)


def report_calls(calls: Iterable[Call]) -> None:
    """Reports the usage of calls, and charges in addition to it, to the call that this code is part of, if any."""
    if current_scope.get().nested_usage is None:
        return
    calls = tuple(calls)
    report_usage(call.usage for call in calls)
    beyond_usage = current_scope.get().beyond_usage
    if beyond_usage is not None:
        beyond_usage.extend(
            Amount(call.charged.usd, call.charged.tokens) - Amount(call.usage.cost, call.usage.total_tokens)
            for call in calls
            if call.charged is not None
        )


def report_run(trace: Trace, began: float, previous_rounds: Collection[Round]) -> None:
    """Reports a finished run, with its usage, to the call that this code is part of, if there is one.

    Args:
        trace: the run.
        began: the time at which it began, on `time.monotonic`.
        previous_rounds: rounds that it continues, whose usage is not part of the call or was reported after each.
    """
    report_calls(call for round_ in trace.rounds if round_ not in previous_rounds for call in round_.calls)
    nested = current_scope.get().nested
    if nested is not None:
        nested.add_run(trace, began)
