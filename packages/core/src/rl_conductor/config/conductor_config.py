"""`ConductorConfig`: the planner, the workers and the settings of a conductor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from rl_conductor.guardrails.base import Guardrail
from rl_conductor.planning.planner import Planner
from rl_conductor.planning.routing.router import Router
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor.pool.pool import WorkerPool, warn_of_lookalikes
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy
from rl_conductor.workflow.workflow import AccessMode


@dataclass(frozen=True, kw_only=True)
class ConductorConfig:
    """The planner, the workers and the settings of a conductor; `Conductor` documents them."""

    planner: Planner
    pool: WorkerPool
    policy: Policy = field(default_factory=Policy)
    limits: Limits = field(default_factory=Limits)
    access: AccessMode = "binary"
    retries: int = 2
    keep_prompts: bool = True
    router: Router | None = None
    selector: WorkflowSelector | None = None
    guardrails: Sequence[Guardrail] = ()
    name: str = "conductor"

    def check_pool(self) -> None:
        """Logs a warning about workers that the planner can't tell apart.

        Raises:
            ConfigError: the pool lacks a worker of the router or the selector.
        """
        for chooser in (self.router, self.selector):
            if chooser is not None:
                chooser.check_pool(self.pool)
        if self.planner.roster == "cards":
            warn_of_lookalikes(self.pool)

    def replaced(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed; `None` keeps a field."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})
