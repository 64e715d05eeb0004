"""Records the calls, tools and runs inside of one model call, and bounds their size in the trace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from rl_conductor.text.truncation import truncate_middle
from rl_conductor.trace.trace import Call, Nested, NestedRun, PlanRecord, Round, StepResult, ToolUse, Trace
from rl_conductor.types import Completion, Message

MAX_NESTED_CHARS = 200_000
"""Maximum size of the nested records of one call, in characters of JSON; what does not fit is counted."""
MAX_TEXT_CHARS = 4_000
"""Maximum length of each text in nested records; longer ones are cut in the middle."""
SHORT_TEXT_CHARS = 200
"""Maximum length of each text in a run that would not fit otherwise; the records inside of its calls are removed."""

Record = TypeVar("Record", Call, ToolUse, NestedRun)


@dataclass(slots=True)
class NestedRecords:
    """Collects the events inside of one model call. Times are converted to those of the run around it."""

    began: float
    """When the run around the call began, on `time.monotonic`."""
    records: list[Call | ToolUse | NestedRun] = field(default_factory=list)

    def add(self, records: Iterable[Call | ToolUse], began: float) -> None:
        """Adds calls or uses of tools with times that count from `began`."""
        shift = began - self.began
        self.records.extend(record.model_copy(update={"started": record.started + shift}) for record in records)

    def add_run(self, trace: Trace, began: float) -> None:
        """Adds a run that began at `began`, and removes the one that it continues."""
        self.records = [record for record in self.records if not _is_continued(record, trace)]
        self.records.append(
            NestedRun(
                id=trace.id,
                planner=trace.planner,
                rounds=trace.rounds,
                answer=trace.answer,
                error=trace.error,
                started=began - self.began,
                seconds=trace.seconds,
            )
        )

    def to_nested(self) -> Nested | None:
        """Returns the records for the trace, shortened to at most `MAX_NESTED_CHARS`; `None` if there are none."""
        if not self.records:
            return None
        space, records = _Space(MAX_NESTED_CHARS), self.records
        return Nested(
            runs=space.fitting([_fit_run(run) for run in records if isinstance(run, NestedRun)]),
            calls=space.fitting([_shorten_call(call, MAX_TEXT_CHARS) for call in records if isinstance(call, Call)]),
            tools=space.fitting([_shorten_tool(tool) for tool in records if isinstance(tool, ToolUse)]),
            left_out=space.left_out,
        )


@dataclass
class _Space:
    """The characters that are left for records."""

    chars: int
    left_out: int = 0

    def fitting(self, records: list[Record]) -> tuple[Record, ...]:
        """Returns the first records that fit into the space, and counts the others."""
        fitting: list[Record] = []
        for record in records:
            size = len(record.model_dump_json())
            if size > self.chars:
                self.left_out += 1
            else:
                self.chars -= size
                fitting.append(record)
        return tuple(fitting)


def _is_continued(record: Call | ToolUse | NestedRun, trace: Trace) -> bool:
    return isinstance(record, NestedRun) and bool(record.rounds) and record.rounds == trace.rounds[: len(record.rounds)]


def _fit_run(run: NestedRun) -> NestedRun:
    shortened = _shorten_run(run, MAX_TEXT_CHARS, keep_nested=True)
    if len(shortened.model_dump_json()) <= MAX_NESTED_CHARS:
        return shortened
    return _shorten_run(run, SHORT_TEXT_CHARS, keep_nested=False)


def _shorten_run(run: NestedRun, chars: int, *, keep_nested: bool) -> NestedRun:
    rounds = tuple(
        Round(
            plan=_shorten_plan(round_.plan, chars, keep_nested=keep_nested),
            results=tuple(_shorten_result(result, chars, keep_nested=keep_nested) for result in round_.results),
        )
        for round_ in run.rounds
    )
    return run.model_copy(update={"rounds": rounds})


def _shorten_plan(plan: PlanRecord, chars: int, *, keep_nested: bool) -> PlanRecord:
    calls = tuple(_shorten_call(call, chars, keep_nested=keep_nested) for call in plan.calls)
    text, reasoning = truncate_middle(plan.text, chars), truncate_middle(plan.reasoning, chars)
    return plan.model_copy(update={"text": text, "reasoning": reasoning, "calls": calls})


def _shorten_result(result: StepResult, chars: int, *, keep_nested: bool) -> StepResult:
    reply = result.reply and _shorten_message(result.reply, chars)
    calls = tuple(_shorten_call(call, chars, keep_nested=keep_nested) for call in result.calls)
    return result.model_copy(update={"reply": reply, "calls": calls})


def _shorten_call(call: Call, chars: int, *, keep_nested: bool = True) -> Call:
    completion = call.completion and _shorten_completion(call.completion, chars)
    nested = call.nested if keep_nested else None
    update = {"request": None, "fingerprint": call.request_fingerprint, "completion": completion, "nested": nested}
    return call.model_copy(update=update)


def _shorten_completion(completion: Completion, chars: int) -> Completion:
    return completion.model_copy(update={"message": _shorten_message(completion.message, chars)})


def _shorten_message(message: Message, chars: int) -> Message:
    """Keeps the text and the tool calls of a message, and cuts them."""
    tool_calls = [
        call.model_copy(update={"arguments": truncate_middle(call.arguments, chars)}) for call in message.tool_calls
    ]
    return Message.assistant(truncate_middle(message.text, chars), tool_calls=tool_calls)


def _shorten_tool(tool: ToolUse) -> ToolUse:
    texts = {name: truncate_middle(getattr(tool, name), MAX_TEXT_CHARS) for name in ("arguments", "result")}
    return tool.model_copy(update=texts)
