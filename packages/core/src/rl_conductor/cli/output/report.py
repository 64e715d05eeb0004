"""Renders a trace: the steps of each round, problems and costs. Returns rich renderables and prints nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rl_conductor._internal.formatting import cost, cost_in_words, counted, seconds, tokens
from rl_conductor.cli.output.console import clean, one_line
from rl_conductor.cli.output.diagram import StepRow, table
from rl_conductor.trace.trace import PlanRecord, Round, StepResult, Trace
from rl_conductor.types import FilePart, ImagePart, Message, Request, Usage, total
from rl_conductor.workflow.workflow import Step, Workflow

MARKS = {"ok": ("✓", "green"), "failed": ("✗", "bold red"), "skipped": ("–", "dim")}

SOURCES = {
    "planner": "planned",
    "given": "as given",
    "single": "one worker, nothing to plan",
    "tier": "a simple request",
    "fallback": "no plan could be used: the best worker answers alone",
    "continuation": "goes on with the worker whose tools were called",
}
"""Description of the source of a workflow."""


def summary(trace: Trace) -> RenderableType:
    """The rounds with their steps, the problems, and the totals."""
    return Group(*_rounds(trace), *problems(trace), Text(), totals(trace))


def _rounds(trace: Trace) -> Iterator[RenderableType]:
    for number, round_ in enumerate(trace.rounds, 1):
        yield plan_heading(number if len(trace.rounds) > 1 else None, trace.planner, round_.plan)
        if round_.workflow is not None:
            yield table(round_.workflow, [step_row(result) for result in round_.results])


def plan_heading(number: int | None, planner: str, plan: PlanRecord) -> Text:
    """The heading of a round: the planner, and the time, tokens and cost of planning."""
    used = total(call.usage for call in plan.calls)
    parts = [seconds(sum(call.seconds for call in plan.calls)), tokens(used), cost(used)]
    words = "the answer stands" if plan.workflow is None and plan.source == "planner" else SOURCES[plan.source]
    who = f"{words} by {planner}" if plan.source == "planner" and plan.workflow is not None else words
    line = Text(f"round {number}: " if number else "", style="dim").append(one_line(who))
    line.append(f" · {' · '.join(parts)}" if plan.calls else "")
    return line.append(f"\ntier: {one_line(plan.tier.in_words)}" if plan.tier else "", style="dim")


def step_row(result: StepResult) -> StepRow:
    """The table row of a finished step."""
    mark, style = MARKS[result.status]
    used = total(call.usage for call in result.calls)
    ran = bool(result.calls)
    return StepRow(
        mark=mark,
        style=style,
        worker=result.step.worker,
        subtask=result.step.subtask,
        seconds=seconds(result.seconds or sum(call.seconds for call in result.calls)) if ran else "",
        tokens=f"{used.total_tokens:,} tok" if ran else "",
        cost=cost(used) if ran else "",
    )


def problems(trace: Trace) -> list[Text]:
    """Rejected plans, repairs and failed calls, one line each."""
    lines = []
    for number, round_ in enumerate(trace.rounds, 1):
        where = f"round {number}, " if len(trace.rounds) > 1 else ""
        lines += [f"{where}plan: {error}" for error in deduplicate(round_.plan.errors)]
        lines += [f"{where}plan, changed: {repair}" for repair in round_.plan.repairs]
        for result in round_.results:
            lines += [f"{where}step {result.index + 1}: {line}" for line in _step_troubles(result)]
    if trace.answer is not None and trace.answer.source == "evidence":
        lines.append(f"the last step failed: the answer is the reply of step {trace.answer.step + 1}")
    return [Text.assemble(("! ", "yellow"), (one_line(line), "yellow dim")) for line in lines]


def deduplicate(problems: Iterable[str]) -> list[str]:
    """Removes duplicates and adds their number of occurrences."""
    return [round_ if times == 1 else f"{round_} ({times} times)" for round_, times in Counter(problems).items()]


def _step_troubles(result: StepResult) -> Iterator[str]:
    failed = [f"{call.worker}: {call.error or call.outcome}" for call in result.calls if call.outcome != "ok"]
    yield from deduplicate(failed)
    if result.error and not failed:
        yield result.error
    if result.step.worker != result.planned_worker:
        yield f"{result.step.worker} took the place of {result.planned_worker}"


def totals(trace: Trace) -> Text:
    """Steps, workers, tokens, money and time, in a line."""
    ran = [result for result in trace.results() if result.calls]
    used = trace.usage
    parts = [
        counted(len(ran), "step"),
        counted(len({result.step.worker for result in ran}), "worker"),
        tokens(used),
        cost_in_words(used),
        f"{seconds(trace.seconds)}, critical path {seconds(trace.critical_path)}",
    ]
    return Text(" · ".join(parts), style="bold")


# ---------------------------------------------------------------------------------- the complete report


def full_report(trace: Trace) -> RenderableType:
    """The complete report of a run, without the messages of its calls."""
    sections: list[Iterable[RenderableType]] = [
        [_head(trace)],
        *(_round_story(number, round_, trace) for number, round_ in enumerate(trace.rounds, 1)),
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
            "made": f"{trace.created:%Y-%m-%d %H:%M:%S %Z}",
            "planner": trace.planner,
            "versions": f"rl-conductor {trace.versions.package}, prompts {trace.versions.prompt}",
            "asked": last_turn(trace.request),
        }
    )


def key_value_table(values: Mapping[str, str]) -> Table:
    """A two-column table of names and values."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, value in values.items():
        grid.add_row(name, Text(clean(value)))
    return grid


def last_turn(request: Request) -> str:
    """The last message of the request, with its attachments."""
    if not request.messages:
        return ""
    parts = request.messages[-1].content
    attached = [f"[{part.type}: {part.media_type}]" for part in parts if isinstance(part, ImagePart | FilePart)]
    return "\n".join([request.messages[-1].text, *attached])


def _round_story(number: int, round_: Round, trace: Trace) -> Iterator[RenderableType]:
    yield plan_heading(number if len(trace.rounds) > 1 else None, trace.planner, round_.plan)
    if round_.plan.reasoning:
        yield Padding(Text(clean(round_.plan.reasoning.strip()), style="italic dim"), (0, 0, 0, 2))
    if round_.workflow is not None:
        yield table(round_.workflow, [step_row(result) for result in round_.results])


def by_worker(trace: Trace) -> Table:
    """Calls, tokens and cost of planning and of each worker."""
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    grid.add_column("who")
    for name in ("calls", "read", "cached", "written", "cost"):
        grid.add_column(name, justify="right")
    for name, used in {"planning": trace.planning, **trace.usage_by_worker()}.items():
        grid.add_row(Text(one_line(name)), *_usage_cells(used))
    return grid


def _usage_cells(used: Usage) -> tuple[str, ...]:
    counts = (used.calls, used.input_tokens, used.cached_tokens, used.output_tokens)
    return (*(f"{count:,}" for count in counts), cost(used))


def _answer(trace: Trace) -> Iterator[RenderableType]:
    if trace.completion is None:
        yield Text.assemble(("no answer: ", "bold red"), one_line(trace.error or ""))
        return
    yield Text(f"answer, by {one_line(trace.completion.model)}", style="dim")
    yield Text(clean(trace.completion.text))


# --------------------------------------------------------------------------- messages of calls


def step_exchange(trace: Trace, number: int) -> Iterator[RenderableType]:
    """All messages of the calls of one step (0 is the planner), in every round."""
    for place, round_ in enumerate(trace.rounds, 1):
        title = f"round {place}, " if len(trace.rounds) > 1 else ""
        calls = round_.plan.calls if number == 0 else ()
        who = "planner"
        if 0 < number <= len(round_.results):
            result = round_.results[number - 1]
            calls, who = result.calls, f"step {number}, {result.step.worker}"
        for attempt, call in enumerate(calls, 1):
            yield Text(one_line(f"── {title}{who}, call {attempt} to {call.model}: {call.outcome}"), style="bold")
            yield from _request_messages(call.request)
            if call.completion is not None:
                yield from _message(call.completion.message)
            elif call.error:
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
    """The steps of a running round, finished or waiting."""
    finished = {result.index: step_row(result) for result in results}
    return table(workflow, [finished.get(index, row) for index, row in enumerate(waiting(workflow))])


def waiting(workflow: Workflow) -> list[StepRow]:
    """The rows of a workflow whose steps have not started."""
    return [waiting_row(step) for step in workflow.steps]


def waiting_row(step: Step) -> StepRow:
    """The row of a step that has not started."""
    return StepRow(mark="○", style="dim", worker=step.worker, subtask=step.subtask)
