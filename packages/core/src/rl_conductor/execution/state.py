"""The state of one run: its inputs and rounds so far, and the allowed plans, answer and trace that follow."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache

from rl_conductor._internal.identity import ByIdentity
from rl_conductor._internal.version import package_version
from rl_conductor.calls.context import RunContext
from rl_conductor.errors import ConfigError, PolicyError
from rl_conductor.execution.allowed_plans import AllowedPlans
from rl_conductor.execution.answer import list_failures, select_answer, to_completion
from rl_conductor.execution.continuation import without_continuation
from rl_conductor.execution.executor import Execution
from rl_conductor.execution.guarding import RequestGuard, answer_block, checks_answer
from rl_conductor.execution.prompt_version import prompt_version
from rl_conductor.execution.round_context import Hedges, RoundContext
from rl_conductor.planning.planner import Planner
from rl_conductor.planning.routing.router import Router
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.trace.observers import RunInfo
from rl_conductor.trace.setup import PlannerSetup, Setup, Versions, WorkerSetup
from rl_conductor.trace.trace import Answer, Round, Trace
from rl_conductor.types import Request, total
from rl_conductor.workflow.policy import Policy
from rl_conductor.workflow.workflow import AccessMode, PlanSpace


@dataclass
class RunState:
    """One request, the conductor's configuration for it, and the rounds so far."""

    context: RunContext
    planner: Planner
    pool: WorkerPool
    request: Request
    policy: Policy
    access: AccessMode = "binary"
    conductor: str = "conductor"
    """The conductor's name."""
    stream: bool = False
    """Pass the answer on while it is generated, if it is certain to be the answer."""
    tiers: Router | None = None
    selector: WorkflowSelector | None = None
    previous_rounds: Sequence[Round] = ()
    """Rounds that this run made before it was interrupted, or under another host."""
    rounds: list[Round] = field(default_factory=list)
    streamed_text: str = ""
    """The part of the answer that was passed on while it was generated."""
    planner_because: str = ""
    """Why the conductor's trained planner leaves the request to its general one; empty if it doesn't."""
    dropped: list[str] = field(default_factory=list)
    """Why parts of an interrupted run are not reused; recorded as errors of the next plan."""

    def __post_init__(self) -> None:
        self.limits = self.context.limits
        self.hedges = Hedges(self.limits.hedges)
        self.id = f"run-{secrets.token_hex(8)}"
        self.created = datetime.now(UTC)
        self.guard = RequestGuard(self.request)
        self.context.charge_previous(call for round_ in self.previous_rounds for call in round_.calls)
        self.rounds.extend(self.previous_rounds)
        if self.planner.domain is not None and self.request.messages:
            self._choose_planner()

    def _choose_planner(self) -> None:
        planner = self.planner.for_request(self.request)
        if planner is not self.planner:
            self.planner_because = f"the request is unlike the questions that {self.planner.model.name} was trained on"
            self.planner = planner

    def info(self) -> RunInfo:
        """Describes the run to observers."""
        return RunInfo(
            id=self.id,
            conductor=self.conductor,
            planner=self.planner.model.name,
            workers={worker.name: worker.model.name for worker in self.pool.values()},
            elapsed=self.context.elapsed(),
        )

    @cached_property
    def allowed(self) -> AllowedPlans:
        """The plans that the rounds may have; what guardrails redact in the request afterwards does not change them."""
        return AllowedPlans(self.policy, self.pool, self.planner, self.request, self.limits.steps, self.access)

    @property
    def number(self) -> int:
        """The number of the current round, from 0."""
        return len(self.rounds)

    async def check_input(self) -> None:
        """Lets the guardrails check the request; redacted text is replaced, and a request that fails is withheld.

        Raises:
            GuardrailError: a guardrail refused the request, or failed.
            PolicyError: a guardrail's model may not read the request.
        """
        if self.guard.is_done:
            return
        self.check_guardrail_access()
        self.request = self.guard.withheld
        self.request = await self.guard.check(self.context)

    def execution(self) -> Execution:
        """Returns the current round's execution, with no step started."""
        return Execution(
            RoundContext(
                run=self.context,
                pool=self.pool,
                space=self.space(),
                request=without_continuation(self.request),
                number=self.number,
                previous_rounds=tuple(self.rounds),
                hedges=self.hedges,
            )
        )

    def space(self) -> PlanSpace:
        """Returns the plans that the current round may have.

        Raises:
            PolicyError: no workflow is allowed.
        """
        return self.allowed.space(self.rounds)

    # -------------------------------------------------------------------------------- checks

    def check(self) -> None:
        """Checks that some workflow is allowed, and that the planner may see the request if one has to be planned.

        Raises:
            PolicyError: otherwise.
        """
        self.check_guardrail_access()
        if not self.space().leaves_no_choice and self.tiers is None and self.selector is None:
            self.allowed.check_planner_access()

    def check_setup(self) -> None:
        """Checks the policy as `check` does, and builds the grammar of plans, which logs the rules that it can't hold.

        Raises:
            PolicyError: no workflow is allowed, or the planner may not see the request.
        """
        self.check()
        with suppress(ConfigError):  # rules that contradict one another: a run falls back and says why
            self.planner.response_format(self.space())
        if self.planner.general is not None:
            replace(self, planner=self.planner.general).check_setup()

    def check_guardrail_access(self) -> None:
        """Raises `PolicyError` unless the policy lets every guardrail's model read the request."""
        for guardrail in self.context.guardrails:
            reason = guardrail.card and self.policy.data_refused_because(guardrail.card)
            if reason:
                raise PolicyError(
                    f"the guardrail {guardrail.name!r} may not see this request: {reason}; use one that checks it "
                    "locally, or describe its service with card=Card(tags=..., region=...)",
                    rule="data_class",
                )

    # -------------------------------------------------------------------------------- answer and trace

    def answer(self) -> Answer | None:
        """Selects the answer from the rounds so far; none if a guardrail blocked it."""
        if self.context.all_guardrails and answer_block(self.rounds) is not None:
            return None
        # An earlier step's reply won't do where the policy says who answers, or where only the last step was told the
        # response format.
        allow_evidence = self.policy.pinned is None and self.request.response_format is None
        if self.context.guardrails and checks_answer(self.context):  # an earlier reply was not checked as an answer
            allow_evidence = False
        return select_answer(self.rounds, streamed_text=self.streamed_text, allow_evidence=allow_evidence)

    def _failure(self) -> str:
        """Describes why there is no answer."""
        block = answer_block(self.rounds)
        return "; ".join(list_failures(self.rounds)) if block is None else block.in_words

    def trace(self, interruption: str | None) -> Trace:
        """Builds the trace of the run as it is now.

        Args:
            interruption: why the run ended early; it has no answer then.
        """
        versions, setup = _describe_setup(
            ByIdentity(self.planner.setup), ByIdentity(self.pool.setups), self.access, self.context.retries
        )
        usage = total([call.usage for round_ in self.rounds for call in round_.calls])
        answer = self.answer() if interruption is None else None
        result = answer and self.rounds[answer.round].results[answer.step]
        return Trace(
            id=self.id,
            created=self.created,
            request=self.request,
            policy=self.policy,
            limits=self.limits,
            planner=self.planner.model.name,
            rounds=tuple(self.rounds),
            answer=answer,
            completion=to_completion(result, usage, self.streamed_text) if result else None,
            error=None if answer else interruption or self._failure(),
            seconds=self.context.elapsed(),
            delimiter_key=self.context.delimiter_key,
            versions=versions,
            setup=setup,
        )


@lru_cache(maxsize=256)
def _describe_setup(
    planner: ByIdentity[PlannerSetup], workers: ByIdentity[tuple[WorkerSetup, ...]], access: AccessMode, retries: int
) -> tuple[Versions, Setup]:
    """Describes a conductor's configuration for its traces; cached, because it is the same in all of its runs."""
    prompt = prompt_version(planner.value.instructions, *(worker.instructions for worker in workers.value))
    setup = Setup(planner=planner.value, workers=workers.value, access=access, retries=retries)
    return Versions(package=package_version(), prompt=prompt), setup
