"""`RunnableConductor`: a question in, the whole `Trace` out, for those who want the workflow and the evidence.

Its parts are runnables too, so that a person or code can change the plan before it runs:

    conductor.plan | RunnableLambda(change) | conductor.execute
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import convert_to_messages
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import Runnable, RunnableLambda
from typing_extensions import override

from langchain_conductor.messages import core_messages
from langchain_conductor.pool import Conducted, conducted
from langchain_conductor.tracing import note
from rl_conductor._internal.sync import run_sync
from rl_conductor.conductor import Conductor
from rl_conductor.trace.trace import PlanRecord, Round, Trace
from rl_conductor.types import Request, Value
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy
from rl_conductor.workflow.workflow import Workflow

Given = TypeVar("Given")
Made = TypeVar("Made")


class Planned(Value):
    """A plan that was not run yet, and the question it is for. Plain JSON both ways, so it can wait anywhere."""

    request: Request
    record: PlanRecord
    """How the plan came about, and what it cost."""

    @property
    def workflow(self) -> Workflow:
        """The plan itself."""
        assert self.record.workflow is not None
        return self.record.workflow

    def with_workflow(self, workflow: Workflow) -> Self:
        """The same question with this plan instead; whether that may run is checked when it is executed."""
        record = self.record.model_copy(update={"source": "given", "workflow": workflow})
        return self.model_copy(update={"record": record})


class AsyncRunnable(RunnableLambda[Given, Made]):
    """A coroutine function as a runnable, also for callers that can't await."""

    def __init__(self, work: Callable[..., Coroutine[Any, Any, Made]], *, name: str, takes: Any, gives: Any) -> None:
        """`takes` and `gives` are the types that it shows."""

        def in_thread(given: Any, **options: Any) -> Made:
            return run_sync(work(given, **options))

        async def awaited(given: Any, **options: Any) -> Made:
            return await work(given, **options)

        super().__init__(in_thread, awaited, name=name)
        self._takes, self._gives = takes, gives

    @property
    @override
    def InputType(self) -> Any:
        """What it takes."""
        return self._takes

    @property
    @override
    def OutputType(self) -> Any:
        """What it gives."""
        return self._gives

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class RunnableConductor(AsyncRunnable[LanguageModelInput, Trace]):
    """Plans, runs and judges, and gives the trace of it all. `policy` and `limits` may be bound, or given for one call.

    Raises:
        RunError: there is no answer; `error.trace` says why and what it cost.
        PolicyError: no workflow at all may run.
    """

    def __init__(self, conductor: Conductor | Conducted | None = None) -> None:
        """Use the Conductor of a `ChatConductor`, or one of your own, or one over what this machine offers."""
        self.conductor = conducted(conductor)
        super().__init__(self._run, name="conductor", takes=LanguageModelInput, gives=Trace)

    @property
    def plan(self) -> Runnable[LanguageModelInput, Planned]:
        """Writes a plan and does not run it."""
        return AsyncRunnable(self._plan, name="plan", takes=LanguageModelInput, gives=Planned)

    @property
    def execute(self) -> Runnable[Planned, Trace]:
        """Runs a plan, and goes on with further rounds where the limits have any.

        Raises:
            WorkflowValidationError: the plan may not run; `violations` lists every rule it breaks.
        """
        return AsyncRunnable(self._execute, name="execute", takes=Planned, gives=Trace)

    async def _run(
        self, question: LanguageModelInput, *, policy: Policy | None = None, limits: Limits | None = None
    ) -> Trace:
        return await self.conductor.run(_request(question), policy=policy, limits=limits, on_event=note)

    async def _plan(
        self, question: LanguageModelInput, *, policy: Policy | None = None, limits: Limits | None = None
    ) -> Planned:
        request = _request(question)
        record = await self.conductor.plan(request, policy=policy, limits=limits, on_event=note)
        return Planned(request=request, record=record)

    async def _execute(self, planned: Planned, *, policy: Policy | None = None, limits: Limits | None = None) -> Trace:
        begun = [Round(plan=planned.record)]
        return await self.conductor.run(planned.request, resume=begun, policy=policy, limits=limits, on_event=note)


def _request(question: LanguageModelInput) -> Request:
    if isinstance(question, PromptValue):
        return Request(messages=core_messages(question.to_messages()))
    return Request(messages=core_messages(convert_to_messages([question] if isinstance(question, str) else question)))
