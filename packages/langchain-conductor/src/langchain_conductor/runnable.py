"""`RunnableConductor`: a runnable that returns the whole `Trace` instead of a message.

Planning and execution are also runnables, so a person or code can change the plan before it runs:

    conductor.plan | RunnableLambda(change) | conductor.execute
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Self, TypeVar

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import convert_to_messages
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import Runnable, RunnableLambda
from typing_extensions import override

from langchain_conductor.conductors import ConductorSource, to_conductor
from langchain_conductor.messages import core_messages
from langchain_conductor.run_errors import raise_langchain_errors
from langchain_conductor.tracing import hide_draft_tokens, track_event
from rl_conductor.integration import run_sync
from rl_conductor.trace import PlanRecord, Round, Trace
from rl_conductor.types import Request, Value
from rl_conductor.workflow import Limits, Policy, Workflow

Input = TypeVar("Input")
Output = TypeVar("Output")


class Planned(Value):
    """A request with its plan, before it runs. It can be stored as JSON and restored."""

    request: Request
    """The question, as the planner got it."""
    record: PlanRecord
    """The plan, its source and its cost."""

    @property
    def workflow(self) -> Workflow:
        """The workflow of the plan."""
        assert self.record.workflow is not None
        return self.record.workflow

    def with_workflow(self, workflow: Workflow) -> Self:
        """Replaces the plan; the policy is checked when it is executed."""
        record = self.record.model_copy(update={"source": "given", "workflow": workflow})
        return self.model_copy(update={"record": record})


class AsyncRunnable(RunnableLambda[Input, Output]):
    """Makes a runnable, for sync and async callers, from a coroutine function."""

    def __init__(
        self, work: Callable[..., Coroutine[Any, Any, Output]], *, name: str, input_type: Any, output_type: Any
    ) -> None:
        """`input_type` and `output_type` determine the runnable's schemas."""

        def work_sync(value: Any, **options: Any) -> Output:
            return run_sync(work(value, **options))

        async def work_async(value: Any, **options: Any) -> Output:
            return await work(value, **options)

        super().__init__(work_sync, work_async, name=name)
        self._input_type, self._output_type = input_type, output_type

    @property
    @override
    def InputType(self) -> Any:
        """The type of the input."""
        return self._input_type

    @property
    @override
    def OutputType(self) -> Any:
        """The type of the output."""
        return self._output_type

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class RunnableConductor(AsyncRunnable[LanguageModelInput, Trace]):
    """Plans and runs a workflow and returns its trace. `policy` and `limits` may be bound, or passed to one call.

    Raises:
        RunError: there is no answer; `error.trace` has the errors and the usage. It is also one of LangChain's
            `ModelError`s.
        PolicyError: the policy allows no workflow.
    """

    def __init__(self, conductor: ConductorSource | None = None) -> None:
        """Takes a `ChatConductor`, a core Conductor, the folder of a learned one, or a dict of workers.

        By default it uses the models found on this machine.
        """
        self.conductor, self.call_defaults = to_conductor(conductor)
        super().__init__(self._run, name="conductor", input_type=LanguageModelInput, output_type=Trace)

    @property
    def plan(self) -> Runnable[LanguageModelInput, Planned]:
        """A runnable that plans and does not run the plan."""
        return AsyncRunnable(self._plan, name="plan", input_type=LanguageModelInput, output_type=Planned)

    @property
    def execute(self) -> Runnable[Planned, Trace]:
        """A runnable that runs a plan, and continues with further rounds within the limits.

        Raises:
            WorkflowValidationError: the plan is not allowed; `violations` lists every rule that it breaks.
        """
        return AsyncRunnable(self._execute, name="execute", input_type=Planned, output_type=Trace)

    @contextmanager
    def _in_context(self) -> Iterator[None]:
        with (
            raise_langchain_errors(),
            self.call_defaults.in_context(),
            nullcontext() if self.call_defaults.stream_drafts else hide_draft_tokens(),
        ):
            yield

    async def _run(
        self, question: LanguageModelInput, *, policy: Policy | None = None, limits: Limits | None = None
    ) -> Trace:
        request = self.call_defaults.apply(_to_request(question))
        await self.call_defaults.wait_for_turn()
        with self._in_context():
            return await self.conductor.run(request, policy=policy, limits=limits, on_event=track_event)

    async def _plan(
        self, question: LanguageModelInput, *, policy: Policy | None = None, limits: Limits | None = None
    ) -> Planned:
        request = self.call_defaults.apply(_to_request(question))
        await self.call_defaults.wait_for_turn()
        with self._in_context():
            record = await self.conductor.plan(request, policy=policy, limits=limits, on_event=track_event)
        return Planned(request=request, record=record)

    async def _execute(self, planned: Planned, *, policy: Policy | None = None, limits: Limits | None = None) -> Trace:
        rounds = [Round(plan=planned.record)]
        with self._in_context():
            return await self.conductor.run(
                planned.request, resume=rounds, policy=policy, limits=limits, on_event=track_event
            )


def _to_request(question: LanguageModelInput) -> Request:
    if isinstance(question, PromptValue):
        return Request(messages=core_messages(question.to_messages()))
    return Request(messages=core_messages(convert_to_messages([question] if isinstance(question, str) else question)))
