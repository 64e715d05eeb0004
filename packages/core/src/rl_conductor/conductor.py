"""`Conductor`: a model that answers by writing a workflow over other models and running it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Self

from rl_conductor._internal.streams import as_told
from rl_conductor._internal.sync import run_sync
from rl_conductor.config.discovery import Found, discover
from rl_conductor.config.profiles import Profile, profile_named
from rl_conductor.errors import ConfigError
from rl_conductor.execution.restore import check_resumed
from rl_conductor.execution.run import Run
from rl_conductor.execution.stepwise import Stepwise
from rl_conductor.models import Model, model
from rl_conductor.planning.planner import Planner
from rl_conductor.planning.router import Tiers
from rl_conductor.pool.pool import AnyWorker, WorkerPool, close_all, warn_of_lookalikes
from rl_conductor.trace.events import AnswerDelta, Event, Finished, Listener, ignore
from rl_conductor.trace.observers import Begun, observed
from rl_conductor.trace.trace import PlanRecord, Round, Trace
from rl_conductor.types import FREE, Completion, Delta, Message, Price, Request, TextPart
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy
from rl_conductor.workflow.workflow import AccessMode, Workflow

Question = str | Sequence[Message] | Request
"""A question in plain words, a conversation, or a whole request."""


class Conductor:
    """Plans, runs and judges over a pool. It is a `Model` itself, so it can serve wherever one can."""

    price: Price | None = FREE
    """Its calls are priced one by one, at the models it calls."""

    def __init__(
        self,
        planner: Planner | Model | str,
        pool: WorkerPool | Mapping[str, AnyWorker],
        *,
        policy: Policy | None = None,
        limits: Limits | None = None,
        access: AccessMode = "binary",
        retries: int = 2,
        keep_prompts: bool = True,
        tiers: Tiers | str | Path | None = None,
        name: str = "conductor",
    ) -> None:
        """Set up a conductor.

        Args:
            planner: who writes the plans: a `Planner`, a model, or its `provider:model`.
            pool: the workers; a mapping as for `WorkerPool` will do.
            policy: what is allowed unless a request says otherwise.
            limits: what may be used unless a request says otherwise.
            access: whether a step sees all earlier steps or none (paper), or any subset.
            retries: most repetitions of a call that failed for a reason that may pass.
            keep_prompts: whether traces keep what each call was shown, or only its fingerprint. The question, the
                plans and the replies they always keep.
            tiers: what sends simple requests to one call of one worker, or its file; see `rl-conductor calibrate`.
            name: its name as a model.

        Raises:
            ConfigError: the tiers can't be read, or are not for this pool.
            PolicyError: no workflow at all may run, or the planner may see no request.
        """
        if isinstance(planner, str):
            planner = model(planner)
        self.planner = planner if isinstance(planner, Planner) else Planner(model=planner)
        self.pool = pool if isinstance(pool, WorkerPool) else WorkerPool(pool)
        self.policy = policy or Policy()
        self.limits = limits or Limits()
        self.name = f"conductor:{name}"
        self.access = access
        self._retries = retries
        self._keep_prompts = keep_prompts
        self.tiers = tiers if isinstance(tiers, Tiers | None) else Tiers.read(tiers)
        if self.tiers is not None:
            _check_tiers(self.tiers, self.pool)
        self._closing = False
        self.capabilities = self.pool.capabilities.model_copy(update={"delegates": True, "reasoning_start": "outside"})
        if self.planner.roster == "cards":
            warn_of_lookalikes(self.pool)
        self.check(Request(messages=()))

    @classmethod
    def from_env(
        cls,
        *,
        profile: Profile | str | None = None,
        pool_file: str | Path | None = None,
        policy: Policy | None = None,
        limits: Limits | None = None,
    ) -> Self:
        """A conductor over what this machine offers: a pool file, vendors' keys, a local server, else embedded models.

        `discover()` tells what that is, and why.

        Raises:
            ConfigError: there is no such profile, or what was found can't be used.
        """
        return cls.of(discover(pool_file=pool_file), profile=profile, policy=policy, limits=limits)

    @classmethod
    def of(
        cls,
        found: Found,
        *,
        profile: Profile | str | None = None,
        policy: Policy | None = None,
        limits: Limits | None = None,
        name: str = "conductor",
    ) -> Self:
        """A conductor over what was found.

        Args:
            found: who plans and who works, and what is usual for them.
            profile: orders the workers and brings limits, within which plans are no longer than is usual.
            policy: in place of the usual one.
            limits: in place of the profile's, or the usual ones.
            name: its name as a model.

        Raises:
            ConfigError: there is no such profile, or what was found can't be used.
            PolicyError: no workflow at all may run, or the planner may see no request.
        """
        chosen = profile_named(profile) if isinstance(profile, str) else profile
        return cls(
            found.planner,
            chosen.ordered(found.pool) if chosen else found.pool,
            policy=policy or found.policy,
            limits=limits or (chosen.within(found.limits) if chosen else found.limits),
            access=found.access,
            tiers=found.tiers,
            name=name,
        )

    def replaced(
        self,
        *,
        planner: Planner | None = None,
        pool: WorkerPool | None = None,
        limits: Limits | None = None,
        access: AccessMode | None = None,
        retries: int | None = None,
    ) -> Self:
        """This conductor with some parts in place of its own; `None` keeps one.

        Raises:
            ConfigError: its tiers are not for such a pool.
            PolicyError: no workflow at all may run.
        """
        return type(self)(
            planner or self.planner,
            pool or self.pool,
            policy=self.policy,
            limits=limits or self.limits,
            access=access or self.access,
            retries=self._retries if retries is None else retries,
            keep_prompts=self._keep_prompts,
            tiers=self.tiers,
            name=self.name.partition(":")[2],
        )

    # ---------------------------------------------------------------------------- plans and traces

    def check(self, request: Request, *, policy: Policy | None = None, limits: Limits | None = None) -> None:
        """See to it that some workflow may run for `request`, before anybody is asked anything.

        Raises:
            PolicyError: none may, or the planner may not see the request; `rule` names the field to change, or is
                `capabilities`.
        """
        self._run_of(request, policy, limits, ignore).check()

    async def plan(
        self,
        question: Question,
        *,
        before: Sequence[Round] = (),
        rejected: PlanRecord | None = None,
        policy: Policy | None = None,
        limits: Limits | None = None,
        on_event: Listener | None = None,
    ) -> PlanRecord:
        """A plan for `question`, or for the round after those `before`, which is not run.

        It may take the place of one that was `rejected`, whose calls it takes over: they count towards the limits.
        When it is cancelled, the last event is `Finished`, which says what it cost.

        Raises:
            PolicyError: no workflow at all may run.
            WorkflowValidationError: the policy does not allow what the rounds `before` hold.
        """
        run = self._run_of(_request(question), policy, limits, on_event or ignore, before)
        run.check_earlier_rounds()
        calls = rejected.calls if rejected else ()
        run.caller.carry_on(calls)
        with observed(self._begun(run), run.emit) as run.emit:
            record = await run.plan()
        return record.model_copy(update={"calls": (*calls, *record.calls)})

    def stepwise(
        self,
        question: Question,
        plan: PlanRecord | Workflow,
        *,
        before: Sequence[Round] = (),
        policy: Policy | None = None,
        limits: Limits | None = None,
        on_event: Listener | None = None,
        stream: bool = False,
    ) -> Stepwise:
        """A plan whose steps the caller starts itself, for hosts that schedule and store on their own.

        Args:
            question: what was asked of `plan`, if that made it.
            plan: a record that `plan` returned, or the caller's own workflow.
            before: the rounds before this one.
            policy: in place of the conductor's own.
            limits: in place of the conductor's own.
            on_event: told of everything as it happens.
            stream: tell `on_event` the answer as it is written, instead of once it is whole.

        Raises:
            PolicyError: no workflow at all may run.
            WorkflowValidationError: this one may not run, or the policy does not allow what the rounds `before` hold.
        """
        run = self._run_of(_request(question), policy, limits, on_event or ignore, before)
        run.stream = stream
        record = plan if isinstance(plan, PlanRecord) else PlanRecord(source="given", workflow=plan)
        return Stepwise(run, record, lambda: self._begun(run))

    async def run(
        self,
        question: Question,
        *,
        workflow: Workflow | None = None,
        resume: Sequence[Round] = (),
        policy: Policy | None = None,
        limits: Limits | None = None,
        on_event: Listener | None = None,
        stream: bool = False,
        run_id: str | None = None,
    ) -> Trace:
        """Answer `question`; the answer is `trace.completion`.

        Args:
            question: plain words, a conversation, or a whole request.
            workflow: run this instead of planning.
            resume: the rounds of a run of this question that was cut short. Plans and replies that are in them are
                not asked for again, and what they used counts towards the limits. What today's policy does not allow
                is dropped and done again; `PlanRecord.errors` in the trace names the rule.
            policy: in place of the conductor's own.
            limits: in place of the conductor's own.
            on_event: told of everything as it happens; the last event, `Finished`, comes even when cancelled.
            stream: tell `on_event` the answer as it is written, instead of once it is whole.
            run_id: the id that the trace gets; one is drawn without it.

        Raises:
            RunError: there is no answer; `error.trace` says why and what it cost.
            PolicyError: no workflow at all may run.
            WorkflowValidationError: the caller's own workflow may not run.
            ConfigError: `workflow` is another than the one that the rounds to `resume` were made by.
        """
        check_resumed(workflow, resume)
        run = self._run_of(_request(question), policy, limits, on_event or ignore, resume)
        run.stream = stream
        run.id = run_id or run.id
        return await self._observed(run, workflow)

    def run_sync(
        self,
        question: Question,
        *,
        workflow: Workflow | None = None,
        resume: Sequence[Round] = (),
        policy: Policy | None = None,
        limits: Limits | None = None,
    ) -> Trace:
        """`run` for code that is not async."""
        return run_sync(self.run(question, workflow=workflow, resume=resume, policy=policy, limits=limits))

    def events(
        self,
        question: Question,
        *,
        workflow: Workflow | None = None,
        resume: Sequence[Round] = (),
        policy: Policy | None = None,
        limits: Limits | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Everything as it happens, the answer's text as it is written, and `Finished` last; see `run`.

        Closing the iterator cancels the run.

        Raises:
            RunError: after `Finished`, when there is no answer.
        """
        return as_told(
            lambda tell: self.run(
                question, workflow=workflow, resume=resume, policy=policy, limits=limits, on_event=tell, stream=True
            )
        )

    # ------------------------------------------------------------------------------------- a Model

    async def complete(self, request: Request) -> Completion:
        """The answer, with the usage of the whole run.

        Raises:
            RunError: there is no answer; `error.trace` says why and what it cost.
        """
        completion = (await self.run(request)).completion
        assert completion is not None
        return completion

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The answer as the final worker writes it."""
        async with aclosing(self.events(request)) as events:
            async for event in events:
                if isinstance(event, AnswerDelta):
                    yield Delta(text=event.text)
                elif isinstance(event, Finished) and event.trace.completion is not None:
                    yield Delta(completion=event.trace.completion)

    async def aclose(self) -> None:
        """Close the planner's model and every worker's."""
        if not self._closing:  # a conductor may be in a pool of its own
            self._closing = True
            try:
                await close_all((self.planner.model, *(worker.model for worker in self.pool.values())))
            finally:
                self._closing = False

    async def _observed(self, run: Run, workflow: Workflow | None) -> Trace:
        with observed(self._begun(run), run.emit) as run.emit:
            return await run.go(workflow)

    def _begun(self, run: Run) -> Begun:
        return Begun(
            id=run.id,
            conductor=self.name.partition(":")[2],
            planner=self.planner.model.name,
            workers={worker.name: worker.model.name for worker in self.pool.values()},
            elapsed=run.caller.elapsed(),
        )

    def _run_of(
        self,
        request: Request,
        policy: Policy | None,
        limits: Limits | None,
        emit: Listener,
        before: Sequence[Round] = (),
    ) -> Run:
        limits = limits or self.limits
        if request.timeout is not None:
            seconds = min(request.timeout, limits.seconds or request.timeout)
            limits = limits.model_copy(update={"seconds": seconds})
        return Run(
            planner=self.planner,
            pool=self.pool,
            request=request,
            policy=policy or self.policy,
            limits=limits,
            emit=emit,
            access=self.access,
            retries=self._retries,
            keep_prompts=self._keep_prompts,
            tiers=self.tiers,
            before=before,
        )


def _check_tiers(tiers: Tiers, pool: WorkerPool) -> None:
    """Raise `ConfigError` unless the worker of whom they were learned is there, as it was."""
    cure = "make them anew with rl-conductor calibrate --tiers"
    if tiers.worker not in pool:
        raise ConfigError(f"the tiers are of worker {tiers.worker!r}, but the pool has {', '.join(pool)}; {cure}")
    if (now := pool[tiers.worker].model.name) != tiers.model:
        raise ConfigError(f"the tiers were learned when {tiers.worker!r} was {tiers.model}; now it is {now}: {cure}")


def _request(question: Question) -> Request:
    if isinstance(question, str):
        question = (Message.user(question),)
    request = question if isinstance(question, Request) else Request(messages=tuple(question))
    parts = [part for message in request.messages for part in message.content]
    if all(isinstance(part, TextPart) and not part.text.strip() for part in parts):
        raise ConfigError("the question is empty; ask something")
    return request
