"""Renders a trace: the steps of each round, problems and costs. Returns rich renderables and prints nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rl_conductor._internal.formatting import cost, cost_in_words, counted, seconds, tokens, with_worker_name
from rl_conductor.cli.output.console import clean, one_line
from rl_conductor.cli.output.diagram import StepRow, table
from rl_conductor.trace.checks import GuardrailCheck
from rl_conductor.trace.outcomes import CANCELLED, FAILURES
from rl_conductor.trace.trace import Nested, NestedRun, PlanRecord, Round, StepResult, Trace
from rl_conductor.types import FilePart, FinishReason, ImagePart, Message, Request, Usage
from rl_conductor.workflow.workflow import Step, Workflow

MARKS = {"ok": ("✓", "green"), "failed": ("✗", "bold red"), "skipped": ("–", "dim")}

SOURCES = {
    "planner": "planned",
    "given": "your workflow",
    "single": "single worker, no planning",
    "router": "simple request, no planning",
    "learned": "learned workflow, no planning",
    "fallback": "the best worker answers alone",
    "continuation": "continued with the worker that called the tools",
}
"""Descriptions of the origin of a workflow."""
UNREACHABLE = re.compile(r"(?P<model>\S+): (?P<reason>can't reach .+)", re.DOTALL)
"""The message of an `UnreachableError`."""


INCOMPLETE: Mapping[FinishReason, str] = {
    "length": "the reply was cut off when it reached max_tokens",
    "content_filter": "the vendor's content filter refused or cut off the reply",
}
"""Descriptions of the finish reasons of replies that are not the worker's full answer."""


def summary(trace: Trace) -> RenderableType:
    """Renders the rounds with their steps, the problems and the totals."""
    return Group(*_rounds(trace), *problems(trace), Text(), totals(trace))


def _rounds(run: Trace | NestedRun) -> Iterator[RenderableType]:
    for number, round_ in enumerate(run.rounds, 1):
        yield plan_heading(number if len(run.rounds) > 1 else None, run.planner, round_.plan)
        yield from _steps(round_)


def _steps(round_: Round) -> Iterator[RenderableType]:
    """Renders the steps of a round, and indented below them the runs inside of their calls."""
    if round_.workflow is None:
        return
    yield table(round_.workflow, [step_row(result) for result in round_.results])
    for result in round_.results:
        for nested in filter(None, (call.nested for call in result.calls)):
            yield Padding(Group(*_nested(f"inside step {result.index + 1}", nested)), (0, 0, 0, 4))


def _nested(where: str, nested: Nested) -> Iterator[RenderableType]:
    """Renders the tools, calls and conductors inside of one call."""
    if nested.calls or nested.tools:
        uses = deduplicate([f"{use.name}{' (error)' if use.is_error else ''}" for use in nested.tools])
        tools = f": {', '.join(uses)}" if uses else ""
        parts = f"{counted(len(nested.calls), 'call')}, {counted(len(nested.tools), 'use')} of tools{tools}"
        yield Text(one_line(f"{where}: {parts}"), style="dim")
    for run in nested.runs:
        yield Text(
            one_line(f"{where}: a conductor, {counted(len(run.rounds), 'round')}, {seconds(run.seconds)}"), "dim"
        )
        yield from _rounds(run)
        if run.error:
            yield Text(one_line(f"no answer: {run.error}"), style="yellow dim")
    if nested.left_out:
        yield Text(f"{where}: {counted(nested.left_out, 'more record')} left out because of their size", style="dim")


def plan_heading(number: int | None, planner: str, plan: PlanRecord) -> Text:
    """Renders the heading of a round: the planner, and the time, tokens and cost of planning."""
    parts = [seconds(sum(call.seconds for call in plan.calls)), tokens(plan.usage), cost(plan.usage)]
    origin = _round_origin(planner, plan)
    line = Text(f"round {number}: " if number else "", style="dim").append(one_line(origin))
    line.append(f" · {' · '.join(parts)}" if plan.calls else "")
    line.append(f"\nreason: {one_line(plan.planning_reason)}" if plan.planning_reason else "", style="dim")
    return line.append(f"\nrouter: {one_line(plan.routing.in_words)}" if plan.routing else "", style="dim")


def _round_origin(planner: str, plan: PlanRecord) -> str:
    """Describes the origin of a round, with the planner's name."""
    if plan.source == "planner" and plan.workflow is not None:
        return f"{SOURCES[plan.source]} by {planner}"
    if plan.workflow is None and CANCELLED in plan.errors:
        return f"planning by {planner} was interrupted"
    return plan_origin(plan)


def plan_origin(plan: PlanRecord) -> str:
    """Describes the origin of a plan, or the consequence if there is none."""
    if plan.source == "fallback":
        reason = "no valid plan" if plan.usage.calls else "nothing was planned"  # a limit did not allow it
        return f"{reason}, so {SOURCES['fallback'] if plan.workflow else 'the previous answer is kept'}"
    return "the answer is accepted" if plan.workflow is None else SOURCES[plan.source]


def step_row(result: StepResult) -> StepRow:
    """Builds the table row of a finished step."""
    mark, style = MARKS[result.status]
    ran = bool(result.calls)
    return StepRow(
        mark=mark,
        style=style,
        worker=result.step.worker,
        subtask=result.step.subtask,
        seconds=seconds(result.seconds or sum(call.seconds for call in result.calls)) if ran else "",
        tokens=f"{result.usage.total_tokens:,} tok" if ran else "",
        cost=cost(result.usage) if ran else "",
    )


def problems(trace: Trace) -> list[Text]:
    """Lists rejected plans, repairs and failed calls, one per line; a server that can't be reached only once."""
    lines = [] if _is_unreachable(trace) else unreachable_servers(trace)
    for number, round_ in enumerate(trace.rounds, 1):
        where = f"round {number}, " if len(trace.rounds) > 1 else ""
        blocked = {check.in_words for check in round_.plan.checks if check.is_blocking}
        errors = [
            error
            for error in round_.plan.errors
            if error not in {CANCELLED, *blocked} and not UNREACHABLE.fullmatch(error)
        ]
        lines += [f"{where}plan: {error}" for error in deduplicate(errors)]
        lines += [f"{where}plan repaired: {repair}" for repair in round_.plan.repairs]
        lines += [f"{where}{report}" for report in _reports(round_.plan.checks)]
        for result in round_.results:
            lines += [f"{where}step {result.index + 1}: {line}" for line in _step_problems(result)]
    if trace.answer is not None and trace.answer.source == "evidence":
        lines.append(f"the last step failed: the answer is the reply of step {trace.answer.step + 1}")
    return [Text.assemble(("! ", "yellow"), (one_line(line), "yellow dim")) for line in lines]


def unreachable_servers(trace: Trace) -> list[str]:
    """Describes each server that could not be reached, with the models that were called there."""
    models: dict[str, Counter[str]] = {}
    for call in trace.calls:
        if match := UNREACHABLE.fullmatch(call.error or ""):
            models.setdefault(match["reason"], Counter())[match["model"]] += 1
    return [f"{reason} ({', '.join(calls)}; {counted(calls.total(), 'call')})" for reason, calls in models.items()]


def failure(trace: Trace) -> str:
    """Explains why there is no answer; a server that can't be reached is named only once."""
    return "; ".join(unreachable_servers(trace)) if _is_unreachable(trace) else trace.error or ""


def _is_unreachable(trace: Trace) -> bool:
    """Returns `True` if there is no answer only because no server could be reached."""
    failed = [call for call in trace.calls if call.outcome in FAILURES]
    is_reason = bool(failed) and all(UNREACHABLE.fullmatch(call.error or "") for call in failed)
    return is_reason and trace.completion is None


def deduplicate(problems: Iterable[str]) -> list[str]:
    """Removes duplicates and adds their number of occurrences."""
    return [text if times == 1 else f"{text} ({times} times)" for text, times in Counter(problems).items()]


def _step_problems(result: StepResult) -> Iterator[str]:
    failed = [call for call in result.calls if call.outcome in FAILURES]
    reached = [call for call in failed if not UNREACHABLE.fullmatch(call.error or "")]
    yield from deduplicate(
        with_worker_name(call.error or call.outcome, worker=str(call.worker), model=call.model) for call in reached
    )
    calls = [call for call in result.calls if not call.is_check]
    if calls and (completion := calls[-1].completion) and completion.finish_reason in INCOMPLETE:
        yield f"{result.step.worker}: {INCOMPLETE[completion.finish_reason]}"
    yield from _reports(result.checks)
    if result.error and not failed and not any(check.is_blocking for check in result.checks):
        yield result.error
    if result.step.worker != result.planned_worker:
        yield f"{result.step.worker} replaced {result.planned_worker}"


def _reports(checks: Iterable[GuardrailCheck]) -> list[str]:
    """Describes the checks that did not allow a text as it was."""
    return deduplicate(check.in_words for check in checks if check.outcome != "allowed")


def totals(trace: Trace) -> Text:
    """Renders the number of steps and workers, the tokens, cost and time in one line."""
    called = [result for result in trace.results if result.calls]
    used = trace.usage
    parts = [
        counted(len(called), "step"),
        counted(len({result.step.worker for result in called}), "worker"),
        tokens(used),
        cost_in_words(used),
        f"{seconds(trace.seconds)}, critical path {seconds(trace.critical_path)}",
    ]
    return Text(" · ".join(parts), style="bold")


# ---------------------------------------------------------------------------------- the complete report


def full_report(trace: Trace) -> RenderableType:
    """Renders everything about a run except the messages of its calls."""
    sections: list[Iterable[RenderableType]] = [
        [_head(trace)],
        *(_round_details(number, round_, trace) for number, round_ in enumerate(trace.rounds, 1)),
        problems(trace),
        [by_worker(trace)],
        _answer(trace),
        [totals(trace)],
    ]
    blocks = [Group(*parts) for section in sections if (parts := list(section))]
    return Group(*(line for part in blocks[:-1] for line in (part, Text())), blocks[-1])


def _head(trace: Trace) -> Table:
    return key_value_table(
        {
            "run": trace.id,
            "created": f"{trace.created:%Y-%m-%d %H:%M:%S %Z}",
            "planner": trace.planner,
            "versions": f"rl-conductor {trace.versions.package}, prompts {trace.versions.prompt}",
            "question": last_turn(trace.request),
        }
    )


def key_value_table(values: Mapping[str, str]) -> Table:
    """Builds a table with a name and a value per line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, value in values.items():
        grid.add_row(name, Text(clean(value)))
    return grid


def last_turn(request: Request) -> str:
    """Renders the last message of the request, with its attachments."""
    if not request.messages:
        return ""
    parts = request.messages[-1].content
    attached = [f"[{part.type}: {part.media_type}]" for part in parts if isinstance(part, ImagePart | FilePart)]
    return "\n".join([request.messages[-1].text, *attached])


def _round_details(number: int, round_: Round, trace: Trace) -> Iterator[RenderableType]:
    yield plan_heading(number if len(trace.rounds) > 1 else None, trace.planner, round_.plan)
    if round_.plan.reasoning:
        yield Padding(Text(clean(round_.plan.reasoning.strip()), style="italic dim"), (0, 0, 0, 2))
    yield from _steps(round_)


def by_worker(trace: Trace) -> Table:
    """Builds a table with the calls, tokens and cost of planning and of each worker."""
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    grid.add_column("worker")
    for name in ("calls", "input", "cached", "output", "cost"):
        grid.add_column(name, justify="right")
    for name, used in {"planning": trace.planning, **trace.usage_by_worker}.items():
        grid.add_row(Text(one_line(name)), *_usage_cells(used))
    return grid


def _usage_cells(used: Usage) -> tuple[str, ...]:
    counts = (used.calls, used.input_tokens, used.cached_tokens, used.output_tokens)
    return (*(f"{count:,}" for count in counts), cost(used))


def _answer(trace: Trace) -> Iterator[RenderableType]:
    if trace.completion is None:
        yield Text.assemble(("no answer: ", "bold red"), one_line(failure(trace)))
        return
    yield Text(f"answer, by {one_line(trace.completion.model)}", style="dim")
    yield Text(clean(trace.completion.text))


# --------------------------------------------------------------------------- messages of calls


def step_exchange(trace: Trace, number: int) -> Iterator[RenderableType]:
    """Renders all messages of the calls of one step (0 is the planner), in every round."""
    for place, round_ in enumerate(trace.rounds, 1):
        title = f"round {place}, " if len(trace.rounds) > 1 else ""
        calls = round_.plan.calls if number == 0 else ()
        caller = "planner"
        if 0 < number <= len(round_.results):
            result = round_.results[number - 1]
            calls, caller = result.calls, f"step {number}, {result.step.worker}"
        for attempt, call in enumerate(calls, 1):
            yield Text(one_line(f"── {title}{caller}, call {attempt} to {call.model}: {call.outcome}"), style="bold")
            yield from _request_messages(call.request)
            if call.completion is not None:
                yield from _message(call.completion.message)
            if call.error:
                yield Text(clean(call.error), style="red")


def _request_messages(request: Request | None) -> Iterator[RenderableType]:
    if request is None:
        yield Text("the request was not recorded", style="dim")
        return
    for message in request.messages:
        yield from _message(message)


def _message(message: Message) -> Iterator[RenderableType]:
    yield Text(f"[{message.role}]", style="cyan")
    for part in message.content:
        text = f"[{part.type}: {part.media_type}]" if isinstance(part, ImagePart | FilePart) else part.text
        yield Text(clean(text), style="dim" if part.type == "reasoning" else "")
    for call in message.tool_calls:
        yield Text(clean(f"{call.name}({call.arguments})"), style="magenta")


# -------------------------------------------------------------------------------------------- plans


def unfinished(workflow: Workflow, results: Sequence[StepResult]) -> Table:
    """Builds the table of a round in progress."""
    finished = {result.index: step_row(result) for result in results}
    return table(workflow, [finished.get(index, waiting_row(step)) for index, step in enumerate(workflow.steps)])


def waiting_row(step: Step) -> StepRow:
    """Builds the row of a step before it has started."""
    return StepRow(mark="○", style="dim", worker=step.worker, subtask=step.subtask)
