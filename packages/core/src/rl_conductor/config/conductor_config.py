"""`ConductorConfig`: the planner, the workers and the settings of a conductor, from which its runs are created."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self

from rl_conductor.calls.context import RunContext
from rl_conductor.calls.scope import current_scope
from rl_conductor.errors import ConfigError
from rl_conductor.execution.allowed_plans import AllowedPlans
from rl_conductor.execution.guarding import check_guardrail_access
from rl_conductor.execution.question import Question, delimiter_key, to_request
from rl_conductor.execution.run import Run
from rl_conductor.guardrails.base import Guardrail
from rl_conductor.planning.planner import Planner
from rl_conductor.planning.routing.router import Router
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor.pool.pool import WorkerPool, warn_of_lookalikes
from rl_conductor.trace.events import Listener, ignore
from rl_conductor.trace.trace import Round
from rl_conductor.types import Request
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.plan_space import AccessMode
from rl_conductor.workflow.policy import Policy


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

    def check_setup(self) -> None:
        """Checks the pool and the default policy, and logs weaknesses of the setup.

        Logged are workers that the planner can't tell apart, and rules that the grammar of plans can't hold.

        Raises:
            ConfigError: the pool lacks a worker of the router or the selector.
            PolicyError: no workflow is allowed, or a planner or a guardrail may not see requests.
        """
        for chooser in (self.router, self.selector):
            if chooser is not None:
                chooser.check_pool(self.pool)
        if self.planner.roster == "cards":
            warn_of_lookalikes(self.pool)
        policy, no_request = self.policy_of_run(None), Request(messages=())
        for planner in self.planner.planners:
            allowed = AllowedPlans(policy, self.pool, planner, no_request, self.limits.steps, self.access)
            self.check(allowed)
            with suppress(ConfigError):  # rules that contradict one another: a run falls back and says why
                planner.response_format(allowed.first_space)

    def check(self, allowed: AllowedPlans) -> None:
        """Raises `PolicyError` if no workflow is allowed, or a guardrail or the planner may not see the request."""
        check_guardrail_access(self.guardrails, allowed.policy)
        if not allowed.first_space.leaves_no_choice and self.router is None and self.selector is None:
            allowed.check_planner_access()

    def allowed_plans(self, request: Request, policy: Policy | None, limits: Limits | None) -> AllowedPlans:
        """Returns the plans that a run of `request` may have; `None` stands for the conductor's policy and limits."""
        limits, policy = self.limits_of_run(request, limits), self.policy_of_run(policy)
        planner = self.planner.for_request(request)
        return AllowedPlans(policy, self.pool, planner, request, limits.steps, self.access)

    def create_run(
        self,
        question: Question,
        policy: Policy | None,
        limits: Limits | None,
        on_event: Listener | None,
        previous_rounds: Sequence[Round],
        *,
        interrupted: Round | None = None,
    ) -> Run:
        """Creates the run of a question. The arguments are those of `Conductor.run`.

        Raises:
            ConfigError: the question is empty, or of another type.
            PolicyError: the planner may not see the data of a run around this one.
        """
        request = to_request(question)
        limits, policy = self.limits_of_run(request, limits), self.policy_of_run(policy)
        outer = current_scope.get().policies
        return Run(
            context=RunContext(
                limits=limits,
                emit=on_event or ignore,
                policies=(*outer, policy) if policy.applies_to_nested_runs else outer,
                retries=self.retries,
                keep_prompts=self.keep_prompts,
                guardrails=self.guardrails,
                deadline_name="timeout" if request.timeout and request.timeout == limits.seconds else "limits.seconds",
                delimiter_key=delimiter_key(request),
            ),
            planner=self.planner,
            pool=self.pool,
            request=request,
            policy=policy,
            access=self.access,
            conductor=self.name,
            router=self.router,
            selector=self.selector,
            previous_rounds=previous_rounds,
            interrupted=interrupted,
        )

    def policy_of_run(self, policy: Policy | None) -> Policy:
        """Returns `policy`, by default the conductor's, with the rules of the runs around this one.

        Raises:
            PolicyError: the planner may not see the data of a run around this one.
        """
        policies = current_scope.get().policies
        return Policy.or_default(policy, self.policy).within(policies, self.pool.cards, self.planner.card)

    def limits_of_run(self, request: Request, limits: Limits | None) -> Limits:
        """Returns `limits`, by default the conductor's, lowered to the timeout of `request`."""
        limits = Limits.or_default(limits, self.limits)
        return limits if request.timeout is None else limits.lowered(Limits.model_construct(seconds=request.timeout))

    def replaced(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed; `None` keeps a field."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})
