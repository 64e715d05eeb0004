"""`Conductor`: a model that answers by planning and running a workflow of calls to other models."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

from rl_conductor._internal.streams import callback_to_async_iterator
from rl_conductor._internal.sync import run_sync
from rl_conductor.calls.scope import track_run
from rl_conductor.config.conductor_config import ConductorConfig
from rl_conductor.config.discovered_pool import DiscoveredPool
from rl_conductor.config.discovery import discover
from rl_conductor.config.learned_folder import load_folder
from rl_conductor.config.profiles import Profile
from rl_conductor.execution.question import Question
from rl_conductor.execution.restore import split_resumed
from rl_conductor.execution.stepwise import Stepwise
from rl_conductor.guardrails.base import Guardrail, bind_guardrails
from rl_conductor.models import Capabilities, Model
from rl_conductor.planning.planner import Planner
from rl_conductor.planning.routing.router import Router
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor.pool.pool import AnyWorker, WorkerPool, close_all
from rl_conductor.trace.events import AnswerDelta, Event, Finished, Listener, ReasoningDelta
from rl_conductor.trace.observers import observe_run
from rl_conductor.trace.trace import PlanRecord, Round, Trace
from rl_conductor.types import FREE, Completion, Delta, Price, Request
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.plan_space import AccessMode
from rl_conductor.workflow.policy import Policy
from rl_conductor.workflow.workflow import Workflow


class Conductor:
    """Plans and runs workflows over a pool of workers. It is a `Model`, so it can be used wherever a model can.

    Examples:
        ```py
        from rl_conductor import Conductor, Limits

        workers = {"strong": "openai:gpt-6-sol", "cheap": "openai:gpt-6-luna"}
        conductor = Conductor("openai:gpt-6-sol", workers, limits=Limits(usd="0.50"))  # the first one plans
        print(conductor.run_sync("Compare renting and buying a flat for 5 years.").text)
        ```
    """

    price: Price | None = FREE
    """Free by itself: every call is priced by the model that it goes to."""
    capabilities: Capabilities
    """The features that at least one worker supports."""
    _closing = False

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
        router: Router | str | Path | None = None,
        selector: WorkflowSelector | None = None,
        guardrails: Sequence[Guardrail] = (),
        name: str = "conductor",
    ) -> None:
        """Creates a conductor from a planner and a pool.

        Args:
            planner: a `Planner`, a model, or a `provider:model` name.
            pool: the workers, as a `WorkerPool` or a mapping that `WorkerPool` accepts.
            policy: the default policy of runs.
            limits: the default limits of runs.
            access: `binary` if a step reads all earlier steps or none (paper), `positional` if it reads any subset.
            retries: maximum number of retries of a call that failed with a transient error.
            keep_prompts: whether traces store the requests of calls; question, plans and replies are always stored.
            router: a router, or the path of its file, for simple requests; see `rl-conductor calibrate`.
            selector: selects a learned workflow for each request instead of planning; see `rl-conductor learn`.
            guardrails: checks of the request, of workers' prompts and replies, and of the answer.
            name: the conductor's name as a model.

        Raises:
            ConfigError: the router file can't be read, or the pool lacks a worker of router, selector or guardrails.
            PolicyError: the policy allows no workflow, or does not allow the planner or a guardrail to read requests.
        """
        pool = pool if isinstance(pool, WorkerPool) else WorkerPool(pool)
        self.config = ConductorConfig(
            planner=Planner.of(planner),
            pool=pool,
            policy=Policy.or_default(policy, Policy()),
            limits=Limits.or_default(limits, Limits()),
            access=access,
            retries=retries,
            keep_prompts=keep_prompts,
            router=router if isinstance(router, Router | None) else Router.read(router),
            selector=selector,
            guardrails=bind_guardrails(guardrails, pool),
            name=name,
        )
        self.config.check_setup()
        self.capabilities = pool.capabilities.model_copy(update={"delegates": True, "reasoning_start": "outside"})

    @classmethod
    def from_env(
        cls,
        *,
        profile: Profile | str | None = None,
        pool_file: str | Path | None = None,
        policy: Policy | None = None,
        limits: Limits | None = None,
    ) -> Self:
        """Creates a conductor from a pool file, vendors' API keys, a local server, or else the embedded models.

        `pool_file` is by default the value of `RL_CONDUCTOR_POOL`; the other arguments are those of `from_discovered`.

        Raises:
            ConfigError, PolicyError: as for `from_discovered`, or the discovered configuration is invalid.
        """
        return cls.from_discovered(discover(pool_file=pool_file), profile=profile, policy=policy, limits=limits)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        pool: WorkerPool | Mapping[str, AnyWorker] | None = None,
        planner: Planner | Model | str | None = None,
        policy: Policy | None = None,
        limits: Limits | None = None,
    ) -> Self:
        """Loads a learned conductor from a folder that `rl-conductor learn` created.

        Without a `pool`, the workers are those of the pool file that it was learned for. A `planner`, a model or a
        `provider:model` name replaces the pool file's planner, and a trained one.

        Raises:
            ConfigError: a file is missing or invalid, or the pool lacks a worker of the learned workflows.
            PolicyError: the policy allows no workflow.
        """
        return cls.from_discovered(load_folder(folder, pool=pool, planner=planner), policy=policy, limits=limits)

    @classmethod
    def from_discovered(
        cls,
        discovered: DiscoveredPool,
        *,
        profile: Profile | str | None = None,
        policy: Policy | None = None,
        limits: Limits | None = None,
        name: str | None = None,
    ) -> Self:
        """Creates a conductor from a discovered pool.

        Args:
            discovered: the planner, the pool and their default settings.
            profile: a profile or the name of a built-in one, as for `DiscoveredPool.with_profile`.
            policy: replaces the discovered policy.
            limits: replaces the limits of the profile or the discovered ones.
            name: the conductor's name as a model.

        Raises:
            ConfigError: the profile does not exist, or the router does not match the pool.
            PolicyError: the policy allows no workflow, or does not allow the planner to read requests.
        """
        return cls.from_config(discovered.with_settings(profile=profile, policy=policy, limits=limits, name=name))

    @classmethod
    def from_config(cls, config: ConductorConfig) -> Self:
        """Creates a conductor from its configuration. Raises like the constructor."""
        return cls(**{each.name: getattr(config, each.name) for each in fields(ConductorConfig)})

    def replaced(self, **changes: Any) -> Self:
        """Returns a copy with some fields of `config` changed; `None` keeps a field. Raises like the constructor."""
        return self.from_config(self.config.replaced(**changes))

    @property
    def name(self) -> str:
        """The name as a model, such as `conductor:house`."""
        return f"conductor:{self.config.name}"

    @property
    def planner(self) -> Planner:
        """The planner, which writes the workflows."""
        return self.config.planner

    @property
    def pool(self) -> WorkerPool:
        """The workers that plans may use."""
        return self.config.pool

    @property
    def policy(self) -> Policy:
        """The default policy of runs."""
        return self.config.policy

    @property
    def limits(self) -> Limits:
        """The default limits of runs."""
        return self.config.limits

    def check(self, request: Request, *, policy: Policy | None = None, limits: Limits | None = None) -> None:
        """Checks, without any call, that the policy and the workers' capabilities allow `request`.

        Raises:
            PolicyError: no workflow is allowed, or the planner may not read the request; `rule` is the name of the
                policy field to change, or `capabilities`.
        """
        self.config.check(self.config.allowed_plans(request, policy, limits))

    async def plan(
        self,
        question: Question,
        *,
        previous_rounds: Sequence[Round] = (),
        rejected: PlanRecord | None = None,
        policy: Policy | None = None,
        limits: Limits | None = None,
        on_event: Listener | None = None,
    ) -> PlanRecord:
        """Plans a workflow for `question` without running it.

        Args:
            question: text, a conversation, or a complete request.
            previous_rounds: the rounds so far, if this is not the first one.
            rejected: a plan that the new one replaces; its calls are added to the record and charged to the limits.
            policy: replaces the conductor's policy.
            limits: replaces the conductor's limits.
            on_event: called with every event as it happens; the last one is `Finished`, even on cancellation.

        Raises:
            LimitError: conductors call one another more deeply than `limits.depth` allows.
            PolicyError: the policy allows no workflow.
            RunError: a guardrail refused the question, or failed.
            WorkflowValidationError: the policy does not allow the previous rounds.
        """
        run = self.config.create_run(question, policy, limits, on_event, previous_rounds)
        run.allowed.check_history(previous_rounds)
        calls = rejected.calls if rejected else ()
        run.context.charge_previous(calls)
        with observe_run(run.info, run.context.emit) as run.context.emit:
            record = await run.plan()
        return record.model_copy(update={"calls": (*calls, *record.calls)})

    def stepwise(
        self,
        question: Question,
        plan: PlanRecord | Workflow,
        *,
        previous_rounds: Sequence[Round] = (),
        policy: Policy | None = None,
        limits: Limits | None = None,
        on_event: Listener | None = None,
        stream: bool = False,
    ) -> Stepwise:
        """Prepares a plan for step-by-step execution by a host that schedules and stores steps itself.

        Args:
            question: text, a conversation, or a complete request; the same as for `plan`, if the plan is from there.
            plan: a record that `plan` returned, or the caller's own workflow.
            previous_rounds: the rounds so far, if this is not the first one.
            policy: replaces the conductor's policy.
            limits: replaces the conductor's limits.
            on_event: called with every event as it happens.
            stream: whether `on_event` receives the answer in deltas while it is generated, or at once at its end.

        Raises:
            ConfigError: the plan accepts the answer of the round before, so it has no steps.
            PolicyError: the policy allows no workflow.
            WorkflowValidationError: the workflow is invalid, or the policy does not allow the previous rounds.
        """
        run = self.config.create_run(question, policy, limits, on_event, previous_rounds)
        run.stream = stream
        record = plan if isinstance(plan, PlanRecord) else PlanRecord(source="given", workflow=plan)
        return Stepwise(run, record)

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
        """Answers `question`. The answer is `trace.completion`.

        Args:
            question: text, a conversation, or a complete request.
            workflow: a workflow to run instead of planning one.
            resume: the rounds of an interrupted run of the same question. Their plans and replies are reused, and
                their usage is charged to the limits. Parts that the current policy does not allow are dropped and
                repeated; `PlanRecord.errors` in the trace contains the rule.
            policy: replaces the conductor's policy.
            limits: replaces the conductor's limits.
            on_event: called with every event as it happens; the last one is always `Finished`, even on cancellation.
            stream: whether `on_event` receives the answer in deltas while it is generated, or at once at its end.
            run_id: the id of the trace; random by default.

        Raises:
            RunError: there is no answer; `error.trace` has the errors and the usage. After a refusal, `RefusedError`.
            LimitError: conductors call one another more deeply than `limits.depth` allows.
            PolicyError: the policy allows no workflow.
            WorkflowValidationError: `workflow` is invalid.
            ConfigError: `workflow` differs from the plan of the first of the rounds to `resume`.
        """
        finished, interrupted = split_resumed(workflow, resume)
        run = self.config.create_run(question, policy, limits, on_event, finished, interrupted=interrupted)
        run.stream, run.id = stream, run_id or run.id
        with observe_run(run.info, run.context.emit) as run.context.emit, track_run(run.context.budget):
            return await run.run(workflow)

    def run_sync(
        self,
        question: Question,
        *,
        workflow: Workflow | None = None,
        resume: Sequence[Round] = (),
        policy: Policy | None = None,
        limits: Limits | None = None,
    ) -> Trace:
        """Runs `run` from synchronous code and returns its trace."""
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
        """Runs `run` and yields its events: the answer in deltas while it is generated, and `Finished` last.

        Closing the iterator cancels the run. Errors are raised after `Finished`.
        """
        return callback_to_async_iterator(
            lambda tell: self.run(
                question, workflow=workflow, resume=resume, policy=policy, limits=limits, on_event=tell, stream=True
            )
        )

    async def complete(self, request: Request) -> Completion:
        """Answers `request` and returns the completion, with the usage of the whole run; raises like `run`."""
        completion = (await self.run(request)).completion
        assert completion is not None
        return completion

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Answers `request` and yields the answer while the final worker generates it."""
        async with aclosing(self.events(request)) as events:
            async for event in events:
                if isinstance(event, ReasoningDelta):
                    yield Delta(reasoning=event.text)
                elif isinstance(event, AnswerDelta) and not event.is_refusal:
                    yield Delta(text=event.text)
                elif isinstance(event, Finished) and event.trace.completion is not None:
                    yield Delta(completion=event.trace.completion)

    async def aclose(self) -> None:
        """Closes the models of the planner and of every worker, and the guardrails."""
        if not self._closing:  # a conductor may be a worker in its own pool
            self._closing = True
            try:
                planners = [planner.model for planner in self.planner.planners]
                await close_all((*planners, *(worker.model for worker in self.pool.values()), *self.config.guardrails))
            finally:
                self._closing = False
