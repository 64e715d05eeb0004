"""Experiments: a model of today, a conductor that may replace it, and the comparison of the two."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from rl_conductor.pool.model_entry import Entry
from rl_conductor.pool.pool_file import WorkerEntry
from rl_conductor.types import Value
from rl_conductor_server.settings.keys import BudgetEntry


def _expand_name(value: object) -> object:
    """Expands `provider:name` to a table."""
    return {"model": value} if isinstance(value, str) else value


ModelEntry = Annotated[WorkerEntry, BeforeValidator(_expand_name)]
"""`provider:name`, or a table like `[workers.NAME]`."""


class ShadowEntry(BudgetEntry):
    """Runs of an experiment's other arm on the same requests, for comparison: `[experiments.NAME.shadow]`."""

    share: float = Field(gt=0, le=1)
    """The fraction of the experiment's answers that are compared."""
    judge: ModelEntry | None = None
    """The model that judges which of two answers is better; `None` requires a `scorer`."""
    scorer: str | None = Field(
        default=None, pattern=r"^[\w.]+:\w+$", examples=['module:function, such as scorer = "my_scorers:exact"']
    )
    """`module:function`, which scores each answer; the judge decides only if the scores are equal. `None` leaves all
    comparisons to the judge."""
    concurrency: int = Field(default=4, ge=1)
    """Maximum number of concurrent comparisons, as local models must serve users at the same time."""

    @model_validator(mode="after")
    def _has_budget_and_comparison(self) -> Self:
        if self.usd is None and self.tokens is None:
            raise ValueError("a shadow needs a budget of its own: write usd or tokens")
        if self.judge is None and self.scorer is None:
            raise ValueError("a shadow needs a way to compare answers: write judge, scorer or both")
        return self


class Guards(Value):
    """Conditions for the answers of a canary, which is rolled back otherwise; `None` disables a condition."""

    errors: float | None = Field(default=0.05, ge=0, le=1)
    """Maximum fraction of failed runs."""
    losses: float | None = Field(default=0.5, ge=0, le=1)
    """Maximum fraction of judged answers that are worse than the baseline's."""
    p95_seconds: float | None = Field(default=None, gt=0)
    """Maximum 95th percentile of run times, in seconds."""
    usd: float | None = Field(default=None, gt=0)
    """Maximum mean cost of an answer, in US dollars."""
    window: int = Field(default=200, ge=10)
    """The number of newest answers that are evaluated."""
    min_answers: int = Field(default=30, ge=5)
    """Minimum sample size before a guard can trip."""


class CanaryEntry(Entry):
    """The part of an experiment's requests that the conductor answers: `[experiments.NAME.canary]`."""

    percent: float = Field(default=0.0, ge=0, le=100)
    """Percentage of the requests that the conductor answers; 0 leaves all to the baseline."""
    guards: Guards = Guards()
    """When the canary is rolled back, so that the baseline answers all requests again."""


class ExperimentEntry(Entry):
    """A model that may be replaced by a conductor, step by step, under the same name: `[experiments.NAME]`."""

    released: date = Field(examples=["a date, such as released = 2026-01-31"])
    """Part of its pinned name. Change it whenever you change the rest; the comparison then starts again."""
    baseline: ModelEntry = Field(examples=['a model, such as baseline = "openai:gpt-6-sol"'])
    """The model that answers today."""
    conductor: str = Field(examples=['a model of this server, such as conductor = "conductor-mini"'])
    """The model that may replace it: a built-in one, such as `conductor-mini`, or one of `[models]`."""
    shadow: ShadowEntry | None = None
    """Comparison of both on the same requests; `None` compares nothing."""
    canary: CanaryEntry = CanaryEntry()
    """The part of the requests that the conductor answers; by default none."""
