"""What a trace tells: the steps of each round, what went wrong, what it cost. Values in, renderables out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rl_conductor._internal.formatting import cost, cost_in_words, counted, seconds, tokens
from rl_conductor.cli.console import clean, one_line
from rl_conductor.cli.graph import StepRow, table
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
"""How a workflow came about, in words."""


def summary(trace: Trace) -> RenderableType:
    """Who did what, what went wrong, and what all of it took."""
    return Group(*_rounds(trace), *troubles(trace), Text(), totals(trace))


def _rounds(trace: Trace) -> Iterator[RenderableType]:
    for number, one in enumerate(trace.rounds, 1):
        yield heading(number if len(trace.rounds) > 1 else None, trace.planner, one.plan)
        if one.workflow is not None:
            yield table(one.workflow, [row_of(result) for result in one.results])


def heading(number: int | None, planner: str, plan: PlanRecord) -> Text:
    """Who planned a round, and what that took."""
    used = total(call.usage for call in plan.calls)
    spent = [seconds(sum(call.seconds for call in plan.calls)), tokens(used), cost(used)]
    words = "the answer stands" if plan.workflow is None and plan.source == "planner" else SOURCES[plan.source]
    who = f"{words} by {planner}" if plan.source == "planner" and plan.workflow is not None else words
    line = Text(f"round {number}: " if number else "", style="dim").append(one_line(who))
    line.append(f" · {' · '.join(spent)}" if plan.calls else "")
    return line.append(f"\ntier: {one_line(plan.tier.in_words)}" if plan.tier else "", style="dim")


def row_of(result: StepResult) -> StepRow:
    """What became of a step."""
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


def troubles(trace: Trace) -> list[Text]:
    """What went wrong on the way, a line each; empty when nothing did."""
    found = []
    for number, one in enumerate(trace.rounds, 1):
        where = f"round {number}, " if len(trace.rounds) > 1 else ""
        found += [f"{where}plan: {error}" for error in counted_once(one.plan.errors)]
        found += [f"{where}plan, changed: {repair}" for repair in one.plan.repairs]
        for result in one.results:
            found += [f"{where}step {result.index + 1}: {line}" for line in _step_troubles(result)]
    if trace.answer is not None and trace.answer.source == "evidence":
        found.append(f"the last step failed: the answer is the reply of step {trace.answer.step + 1}")
    return [Text.assemble(("! ", "yellow"), (one_line(line), "yellow dim")) for line in found]


def counted_once(problems: Iterable[str]) -> list[str]:
    """Each problem once, with how often it came."""
    return [one if times == 1 else f"{one} ({times} times)" for one, times in Counter(problems).items()]


def _step_troubles(result: StepResult) -> Iterator[str]:
    failed = [f"{call.worker}: {call.error or call.outcome}" for call in result.calls if call.outcome != "ok"]
    yield from counted_once(failed)
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


# ---------------------------------------------------------------------------------- the whole story


def story(trace: Trace) -> RenderableType:
    """Everything about a run but what was shown and said in full."""
    sections: list[Iterable[RenderableType]] = [
        [_head(trace)],
        *(_round_story(number, one, trace) for number, one in enumerate(trace.rounds, 1)),
        troubles(trace),
        [by_worker(trace)],
        _answer(trace),
        [totals(trace)],
    ]
    told = [Group(*parts) for section in sections if (parts := list(section))]
    return Group(*(line for part in told[:-1] for line in (part, Text())), told[-1])


def _head(trace: Trace) -> Table:
    return facts(
        {
            "run": trace.id,
            "made": f"{trace.created:%Y-%m-%d %H:%M:%S %Z}",
            "planner": trace.planner,
            "versions": f"rl-conductor {trace.versions.package}, prompts {trace.versions.prompt}",
            "asked": last_turn(trace.request),
        }
    )


def facts(known: Mapping[str, str]) -> Table:
    """What is known of a run, a line each."""
    drawn = Table.grid(padding=(0, 2))
    drawn.add_column(style="dim", no_wrap=True)
    drawn.add_column()
    for name, value in known.items():
        drawn.add_row(name, Text(clean(value)))
    return drawn


def last_turn(request: Request) -> str:
    """The last thing the caller said, with what was attached."""
    if not request.messages:
        return ""
    parts = request.messages[-1].content
    attached = [f"[{part.type}: {part.media_type}]" for part in parts if isinstance(part, ImagePart | FilePart)]
    return "\n".join([request.messages[-1].text, *attached])


def _round_story(number: int, one: Round, trace: Trace) -> Iterator[RenderableType]:
    yield heading(number if len(trace.rounds) > 1 else None, trace.planner, one.plan)
    if one.plan.reasoning:
        yield Padding(Text(clean(one.plan.reasoning.strip()), style="italic dim"), (0, 0, 0, 2))
    if one.workflow is not None:
        yield table(one.workflow, [row_of(result) for result in one.results])


def by_worker(trace: Trace) -> Table:
    """What planning and each worker used."""
    drawn = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    drawn.add_column("who")
    for name in ("calls", "read", "cached", "written", "cost"):
        drawn.add_column(name, justify="right")
    for name, used in {"planning": trace.planning, **trace.usage_by_worker()}.items():
        drawn.add_row(Text(one_line(name)), *_usage_cells(used))
    return drawn


def _usage_cells(used: Usage) -> tuple[str, ...]:
    counts = (used.calls, used.input_tokens, used.cached_tokens, used.output_tokens)
    return (*(f"{count:,}" for count in counts), cost(used))


def _answer(trace: Trace) -> Iterator[RenderableType]:
    if trace.completion is None:
        yield Text.assemble(("no answer: ", "bold red"), one_line(trace.error or ""))
        return
    yield Text(f"answer, by {one_line(trace.completion.model)}", style="dim")
    yield Text(clean(trace.completion.text))


# --------------------------------------------------------------------------- what was shown and said


def exchange(trace: Trace, number: int) -> Iterator[RenderableType]:
    """What the step of this number (0 is the planner) was shown and said, in every round, call by call."""
    for place, one in enumerate(trace.rounds, 1):
        title = f"round {place}, " if len(trace.rounds) > 1 else ""
        calls = one.plan.calls if number == 0 else ()
        who = "planner"
        if 0 < number <= len(one.results):
            result = one.results[number - 1]
            calls, who = result.calls, f"step {number}, {result.step.worker}"
        for attempt, call in enumerate(calls, 1):
            yield Text(one_line(f"── {title}{who}, call {attempt} to {call.model}: {call.outcome}"), style="bold")
            yield from _shown(call.request)
            if call.completion is not None:
                yield from _message(call.completion.message)
            elif call.error:
                yield Text(clean(call.error), style="red")


def _shown(request: Request | None) -> Iterator[RenderableType]:
    if request is None:
        yield Text("what it was shown was not kept", style="dim")
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
    """The steps of a round that is not over, as far as they are done."""
    done = {result.index: row_of(result) for result in results}
    return table(workflow, [done.get(index, row) for index, row in enumerate(waiting(workflow))])


def waiting(workflow: Workflow) -> list[StepRow]:
    """The rows of steps of which none has begun."""
    return [waiting_row(step) for step in workflow.steps]


def waiting_row(step: Step) -> StepRow:
    """The row of a step that has not begun."""
    return StepRow(mark="○", style="dim", worker=step.worker, subtask=step.subtask)
