"""Measured costs of calls, and the cost of a set of workflows when equal steps run once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import inf
from statistics import median

from rl_conductor.errors import ConfigError
from rl_conductor.trace.trace import Call
from rl_conductor.types import Value
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.learn.experience import ExperienceRow

MIN_RATIO = 0.5
"""Smallest factor by which a fast exploration lowers the seconds that the rest is planned with."""


class Cost(Value):
    """Dollars, tokens, calls and seconds of wall time, under the names of their caps."""

    usd: float = 0.0
    tokens: float = 0.0
    calls: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(**{name: amount + getattr(other, name) for name, amount in self})

    def __mul__(self, factor: float) -> Cost:
        return Cost(**{name: amount * factor for name, amount in self})

    def at_least(self, other: Cost) -> Cost:
        """Returns the larger amount of the two in each unit."""
        return Cost(**{name: max(amount, getattr(other, name)) for name, amount in self})

    def share(self, limits: Limits) -> float:
        """Returns the largest share of a cap that this cost takes; 0 without caps."""
        return max(self._shares(limits).values(), default=0.0)

    def tightest_cap(self, limits: Limits) -> str:
        """Returns the name of the cap of which this cost takes the largest share; there is at least one."""
        shares = self._shares(limits)
        return max(shares, key=lambda name: shares[name])

    def _shares(self, limits: Limits) -> dict[str, float]:
        caps = {name: cap for name in type(self).model_fields if (cap := getattr(limits, name)) is not None}
        return {name: getattr(self, name) / float(cap) if cap else inf for name, cap in caps.items()}


@dataclass(frozen=True)
class CallCosts:
    """The mean cost of a step of each worker, and of a plan."""

    workers: Mapping[str, Cost]
    planner: Cost = field(default_factory=Cost)

    def faster(self, ratio: float) -> CallCosts:
        """Returns the costs with seconds multiplied by `ratio`, but by no less than `MIN_RATIO` and no more than 1."""
        ratio = min(max(ratio, MIN_RATIO), 1.0)
        workers = {
            name: cost.model_copy(update={"seconds": cost.seconds * ratio}) for name, cost in self.workers.items()
        }
        return CallCosts(workers, self.planner.model_copy(update={"seconds": self.planner.seconds * ratio}))

    @property
    def mean_step(self) -> Cost:
        """The mean over the workers."""
        return sum(self.workers.values(), Cost()) * (1 / max(len(self.workers), 1))

    @property
    def planned_run(self) -> Cost:
        """The expected cost of a plan and its steps."""
        return self.planner + self.mean_step * 2

    def of_workflows(self, workflows: Iterable[Workflow]) -> Cost:
        """Computes the cost of running `workflows` on one question; steps with the same prompt run once."""
        steps = {key: step_worker for workflow in workflows for key, step_worker in step_keys(workflow)}
        return sum(map(self.of_worker, steps.values()), Cost())

    def of_worker(self, worker: str) -> Cost:
        """Returns the mean cost of a step of this worker; that of all workers if it was not measured."""
        return self.workers.get(worker, self.mean_step)


def step_keys(workflow: Workflow) -> list[tuple[object, str]]:
    """Returns, for each step, a key of all that decides its prompt, and its worker."""
    keys: list[object] = []
    for step in workflow.steps:
        keys.append((step.worker, step.subtask, frozenset(keys[index] for index in step.access)))
    return [(key, step.worker) for key, step in zip(keys, workflow.steps, strict=True)]


def find_working(workers: Mapping[str, str], rows: Mapping[str, Sequence[ExperienceRow]]) -> dict[str, str]:
    """Returns the workers, with their descriptions, that did not fail on each question that they were measured on."""
    failed = {name for name, tries in rows.items() if tries and all(row.error for row in tries)}
    return {name: description for name, description in workers.items() if name not in failed}


def describe_failures(rows: Mapping[str, Sequence[ExperienceRow]]) -> list[str]:
    """Describes the workers that failed on each question that they were measured on.

    Raises:
        ConfigError: all workers failed.
    """
    measured = {name: tries for name, tries in rows.items() if tries}
    failed = {name: tries[0].error for name, tries in measured.items() if all(row.error for row in tries)}
    if failed and len(failed) == len(measured):
        raise ConfigError(f"no worker gave an answer, so nothing can be learned: {next(iter(failed.values()))}")
    return [
        f"{name} failed on all of {len(measured[name])} questions and was left out: {error}"
        for name, error in failed.items()
    ]


def measure_costs(
    singles: Mapping[str, Sequence[ExperienceRow]], planner_calls: Sequence[Sequence[Call]], *, parallelism: float
) -> CallCosts:
    """Computes the mean costs from runs of single workers and from the calls of some plans.

    Args:
        singles: the rows of each worker alone; a worker without any counts with the mean of the others.
        planner_calls: the planner's calls of each plan.
        parallelism: seconds of the runs divided by the wall time that they took together.
    """
    measured = {name: _mean([_row_cost(row) for row in rows], parallelism) for name, rows in singles.items() if rows}
    mean = CallCosts(measured).mean_step
    workers = {name: measured.get(name, mean) for name in singles}
    return CallCosts(workers, _mean([_plan_cost(calls) for calls in planner_calls], parallelism))


def _row_cost(row: ExperienceRow) -> Cost:
    spending = row.spending
    return Cost(usd=float(spending.usd), tokens=spending.tokens, calls=spending.calls, seconds=row.seconds)


def _plan_cost(calls: Sequence[Call]) -> Cost:
    usages = [call.usage for call in calls]
    return Cost(
        usd=float(sum((usage.cost for usage in usages), Decimal(0))),
        tokens=sum(usage.total_tokens for usage in usages),
        calls=sum(usage.calls for usage in usages),
        seconds=sum(call.seconds + call.usage.cached_seconds for call in calls),
    )


def _mean(costs: Sequence[Cost], parallelism: float) -> Cost:
    mean = sum(costs, Cost()) * (1 / max(len(costs), 1))
    # The median, because the first call may have to load the model.
    seconds = median([cost.seconds for cost in costs]) if costs else 0.0
    return mean.model_copy(update={"seconds": seconds / max(parallelism, 1.0)})
