"""`WorkflowSelector`: picks one of a few learned workflows for a request, without any call to a planner.

With several workflows it is a linear classifier over hashed words and letter sequences of the user's last message;
with one workflow it is that workflow for every request. Requests outside of its domain are planned. It is stored as
plain JSON, which `rl-conductor learn` creates and this module only applies.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rl_conductor.errors import ConfigError
from rl_conductor.planning.routing.domain import Domain
from rl_conductor.planning.routing.linear_score import LinearScore
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.text.features import text_features
from rl_conductor.types import Request, Value, prompt_in
from rl_conductor.workflow.workflow import Workflow


class WorkflowSelector(Value):
    """Learned workflows and the linear classifier that picks one of them."""

    format: Literal[1] = 1
    workflows: tuple[Workflow, ...] = Field(min_length=1)
    scores: tuple[LinearScore, ...] = ()
    """One for each workflow, in the same order; empty if there is only one workflow."""
    domain: Domain | None = Field(default=None, exclude_if=lambda domain: domain is None)
    """Recognises the requests that the workflows are for; others are planned. `None`: all requests."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        expected = 0 if len(self.workflows) == 1 and not self.scores else len(self.workflows)
        if len(self.scores) != expected:
            raise ValueError(f"{len(self.workflows)} workflows need as many scores, not {len(self.scores)}")
        return self

    def select(self, request: Request) -> Workflow:
        """Returns the workflow for a request; the first of equally good ones."""
        if not self.scores:
            return self.workflows[0]
        features = text_features(prompt_in(request.messages))
        scores = [score.score(features) for score in self.scores]
        return self.workflows[scores.index(max(scores))]

    def includes(self, request: Request) -> bool:
        """Returns whether the workflows are for requests like this one."""
        return self.domain is None or self.domain.includes(request)

    def check_pool(self, pool: WorkerPool) -> None:
        """Checks that `pool` contains every worker of the workflows.

        Raises:
            ConfigError: a worker is missing.
        """
        workers = {step.worker for workflow in self.workflows for step in workflow.steps}
        if missing := sorted(workers - pool.keys()):
            raise ConfigError(
                f"the learned workflows use {', '.join(map(repr, missing))}, but the pool has {', '.join(pool)}; "
                "add these workers or run rl-conductor learn again"
            )
