"""`conductor_server`: an MCP server whose tool `ask` answers questions with a conductor."""

from __future__ import annotations

from contextlib import aclosing
from decimal import Decimal
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field

from rl_conductor._internal.version import package_version
from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConductorError, RunError
from rl_conductor.trace.events import Event, Finished, PlanRejected, StepFinished, StepStarted, WorkflowPlanned
from rl_conductor.trace.summary import StepSummary, Summary
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Value
from rl_conductor.workflow.limits import Limits

DESCRIPTION = """\
Answers a question with a team of language models: a planner splits it into steps, workers do them, and the last one \
gives the answer. Put everything that is needed into the question, because the team sees nothing else."""
MAX_MESSAGE_CHARS = 200
"""Maximum length of a progress message; longer ones are cut."""


class StepReport(Value):
    """One step of a run."""

    round: int
    worker: str
    subtask: str
    status: str
    error: str | None
    model: str | None
    seconds: float
    cost_usd: float

    @classmethod
    def of(cls, number: int, step: StepSummary) -> StepReport:
        return cls(
            round=number,
            worker=step.worker,
            subtask=step.subtask,
            status=step.status,
            error=step.error,
            model=step.model,
            seconds=step.seconds,
            cost_usd=float(step.usage.cost),
        )


class AskResult(Value):
    """The answer with its cost and steps: the structured result of `ask`."""

    answer: str
    error: str | None
    """Why there is no answer."""
    run: str
    model: str | None
    """The model that gave the answer."""
    seconds: float
    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float
    unpriced_calls: int
    """Calls with an unknown price: when this is not 0, `cost_usd` is a lower bound."""
    steps: tuple[StepReport, ...]

    @classmethod
    def of(cls, trace: Trace) -> AskResult:
        summary = Summary.of(trace)
        return cls(
            answer=trace.completion.text if trace.completion else "",
            error=summary.error,
            run=summary.run,
            model=summary.model,
            seconds=summary.seconds,
            calls=summary.usage.calls,
            input_tokens=summary.usage.input_tokens,
            output_tokens=summary.usage.output_tokens,
            cost_usd=float(summary.usage.cost),
            unpriced_calls=summary.usage.unpriced_calls,
            steps=tuple(
                StepReport.of(number, step) for number, round_ in enumerate(summary.rounds) for step in round_.steps
            ),
        )


Question = Annotated[str, Field(min_length=1, description="The question or task, complete in itself.")]
MaxUsd = Annotated[float | None, Field(ge=0, description="Maximum cost in US dollars.")]
MaxSeconds = Annotated[float | None, Field(gt=0, description="Time limit in seconds.")]
MaxSteps = Annotated[int | None, Field(ge=1, description="Maximum number of steps.")]


def conductor_server(conductor: Conductor) -> MCPServer:
    """Creates an MCP server with the tool `ask`, which reports each step as progress."""
    server: MCPServer = MCPServer("rl-conductor", version=package_version(), log_level="WARNING")

    async def ask(
        question: Question,
        context: Context[Any, Any],
        max_usd: MaxUsd = None,
        max_seconds: MaxSeconds = None,
        max_steps: MaxSteps = None,
    ) -> Annotated[CallToolResult, AskResult]:
        limits = lower_limits(conductor.limits, usd=max_usd, seconds=max_seconds, steps=max_steps)
        try:
            return _result(await _run(conductor, question, limits, context))
        except RunError as error:
            return _result(error.trace)
        except ConductorError as error:
            return CallToolResult(content=[TextContent(type="text", text=str(error))], is_error=True)

    hints = ToolAnnotations(title="Ask a team of models", read_only_hint=True, open_world_hint=True)
    server.add_tool(ask, description=DESCRIPTION, annotations=hints)
    return server


async def _run(conductor: Conductor, question: str, limits: Limits, context: Context[Any, Any]) -> Trace:
    """Runs a question and reports its progress; cancelling it cancels the run."""
    count = 0
    trace: Trace | None = None
    async with aclosing(conductor.events(question, limits=limits)) as events:
        async for event in events:
            if isinstance(event, Finished):
                trace = event.trace
            elif (message := progress_message(event)) is not None:
                count += 1
                await context.report_progress(count, message=message[:MAX_MESSAGE_CHARS])
    assert trace is not None
    return trace


def progress_message(event: Event) -> str | None:
    """Describes an event to the user of an MCP client; `None` for events that are not reported."""
    match event:
        case WorkflowPlanned(plan=plan):
            steps = plan.workflow.steps if plan.workflow else ()
            return (
                f"planned {len(steps)} {'step' if len(steps) == 1 else 'steps'}" if steps else "the answer was accepted"
            )
        case PlanRejected(error=error):
            return f"a plan was rejected: {error}"
        case StepStarted(index=index, worker=worker):
            return f"step {index + 1}: {worker} started"
        case StepFinished(result=result):
            return f"step {result.index + 1}: {result.step.worker} {result.status}"
        case _:
            return None


def lower_limits(limits: Limits, *, usd: float | None, seconds: float | None, steps: int | None) -> Limits:
    """Returns `limits`, lowered to those of a client; a client can't raise them."""
    changes: dict[str, Any] = {}
    if usd is not None:
        changes["usd"] = min(Decimal(str(usd)), limits.usd if limits.usd is not None else Decimal(str(usd)))
    if seconds is not None:
        changes["seconds"] = min(seconds, limits.seconds or seconds)
    if steps is not None:
        changes["steps"] = min(steps, limits.steps)
    return limits.model_copy(update=changes)


def _result(trace: Trace) -> CallToolResult:
    result = AskResult.of(trace)
    text = result.answer if trace.completion else f"there is no answer: {result.error}"
    return CallToolResult(
        content=[TextContent(type="text", text=text)],
        structured_content=result.model_dump(mode="json"),
        is_error=trace.completion is None,
    )
