"""Extracts raw steps from a model's reply, in any form and with any malformed JSON. Pure.

It does not know which plans are allowed: `repair` normalises the steps for a space.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

from rl_conductor.errors import WorkflowParseError
from rl_conductor.plan_text.forms import ALL, LABELS, Form, RawStep
from rl_conductor.plan_text.lenient_json import QUOTES, LenientReader

SUBTASK = r"(?:sub[ _-]?)?tasks?(?:[ _-]list)?|instructions?"
WORKER = r"(?:model|worker|agent)s?[ _-]?(?:ids?|list)?"
ACCESS = r"access(?:[ _-]?lists?)?"
INPUTS = r"inputs?|attachments?"
"""Alternative names that models use for each list."""

THOUGHT = re.compile(r"</?(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
FENCE = re.compile(r"^[ \t]{0,8}(?:```|~~~)[\w-]*|```[ \t]*$", re.MULTILINE)
LABEL = re.compile(
    rf"(?<!\w)[{QUOTES}*_]{{0,4}}(?:(?P<model_id>{WORKER})|(?P<subtasks>{SUBTASK})|(?P<access_list>{ACCESS}))"
    rf"[{QUOTES}*_]{{0,4}}\s{{0,9}}(?::\s{{0,9}}[Ll]ist\[[\w\[\]]{{1,20}}\]\s{{0,9}}=|:?=|:)[*_]{{0,4}}\s{{0,9}}",
    re.IGNORECASE,
)
LINE_START = re.compile(r"(?:^|\n)[ \t>*_#•\d.)-]{0,9}\Z")
BULLET = re.compile(r"[ \t]{0,8}(?:[-*•]|\d{1,2}[.)])[ \t]{1,8}([^\n]*)(?:\n|\Z)")
OBJECT = re.compile(
    rf"\{{\s{{0,99}}[{QUOTES}]?(?:reasoning|thoughts?|steps|workflow|plan|accept|{SUBTASK}|{WORKER}|{ACCESS})"
    rf"[{QUOTES}]?\s{{0,9}}[:=]",
    re.IGNORECASE,
)
ROW = re.compile(
    rf"^[ \t>*_#•\d.)\[-]{{0,9}}(?P<row>\[)\s{{0,9}}[{QUOTES}]?[\w .:-]{{1,80}}[{QUOTES}]?"
    rf"\s{{0,9}},\s{{0,9}}(?=[{QUOTES}])",
    re.MULTILINE,
)
"""The start of a line with a step as an array: a worker and the quote of a subtask."""
NEXT_ROW = re.compile(r"[\s,]*(?=\[)")
NO_ROWS = re.compile(r"^\[\]\s*\Z", re.MULTILINE)
NO_STEPS = re.compile(rf"[{QUOTES}]?steps[{QUOTES}]?\s{{0,9}}[:=]\s{{0,9}}\[\s{{0,99}}\]", re.IGNORECASE)

Layout = Literal["bracketed lists", "lists", "objects", "rows"]
"""The ways in which a plan may be written."""
READING_ORDERS: dict[Form, tuple[Layout, ...]] = {
    "lists": ("bracketed lists", "objects", "lists", "rows"),
    "rows": ("rows", "objects", "bracketed lists", "lists"),
    "object": ("objects", "bracketed lists", "lists", "rows"),
}
"""The layouts to look for in a reply, by the requested form."""

COMPLETED_ACCESS = "a step without an access list was taken to read every earlier step"
SEPARATE_STEPS = "the steps were separate objects"


class ExtractedPlan(NamedTuple):
    """A plan with raw steps, not yet checked against a space."""

    form: Form
    reasoning: str
    steps: list[RawStep]
    repairs: list[str]


class _Column(NamedTuple):
    """One labelled list with its offsets in the text."""

    name: str
    items: list[Any]
    start: int
    end: int
    bracketed: bool
    repairs: list[str]


def extract_plan(text: str, form: Form, *, complete: bool) -> ExtractedPlan:
    """Finds the plan in `text`, trying the requested form first.

    Args:
        text: a model's reply.
        form: the requested form.
        complete: whether missing access lists are completed; otherwise lists of different lengths are an error.

    Raises:
        WorkflowParseError: there is no plan in any form, or a list is too short.
    """
    clean, thinking, repairs = _clean(text)
    columns = list(_columns(clean))
    bracketed = [column for column in columns if column.bracketed]
    readers: dict[Layout, Callable[[], ExtractedPlan | None]] = {
        "bracketed lists": partial(_lists, clean, bracketed, complete=complete),
        "lists": partial(_lists, clean, columns, complete=complete),
        "objects": partial(_steps, clean),
        "rows": partial(_rows, clean, form, complete=complete),
    }
    extracted = next((plan for layout in READING_ORDERS[form] if (plan := readers[layout]())), None)
    if extracted is None:
        raise WorkflowParseError(_missing(columns))
    if extracted.form != form:
        repairs.append(f"the plan was in the form {extracted.form!r}, not {form!r}")
    reasoning = "\n".join(part for part in (thinking, extracted.reasoning) if part)
    return extracted._replace(reasoning=reasoning, repairs=[*repairs, *extracted.repairs])


def _clean(text: str) -> tuple[str, str, list[str]]:
    """Returns `text` without thinking blocks and code fences, the thinking, and the repairs."""
    repairs = []
    clean = text.encode("utf-8", "replace").decode().replace("\r\n", "\n")
    thinking = ""
    if tags := list(THOUGHT.finditer(clean)):
        repairs.append("a thinking block was taken as reasoning")
        closing = [tag.end() for tag in tags if tag[0].startswith("</")]
        cut = closing[-1] if closing and clean[closing[-1] :].strip() else 0
        thinking, clean = THOUGHT.sub("", clean[:cut]).strip(), THOUGHT.sub("", clean[cut:])
    unfenced = FENCE.sub("", clean)
    if unfenced != clean:
        repairs.append("code fences were dropped")
    return unfenced, thinking, repairs


# ---------------------------------------------------------------------------------------- three lists


def _columns(text: str) -> Iterator[_Column]:
    """Yields every labelled list in order; labels inside of a list are part of its text."""
    labels = [(label, _opens_line(text, label)) for label in LABEL.finditer(text)]
    reader = LenientReader(text, [_line_start(text, label) for label, opens in labels if opens])
    for label, opens in labels:
        if label.start() < reader.at:
            continue
        name = label.lastgroup or ""
        renamed = [] if label[name] == name else [f"{label[name]!r} was read as {name!r}"]
        if text.startswith(("[", "("), label.end()):
            previous_notes, reader.at = len(reader.notes), label.end()
            items = reader.value() or []
            yield _Column(
                name,
                items,
                _line_start(text, label) if opens else label.start(),
                reader.at,
                True,
                [*renamed, *reader.notes[previous_notes:]],
            )
        elif opens:
            lines, end = _unbracketed(text, label.end())
            items = [item for line in lines for item in _items(line, name)]
            notes = [*renamed, "a list without brackets was read"]
            yield _Column(name, items, _line_start(text, label), end, False, notes)


def _line_start(text: str, label: re.Match[str]) -> int:
    return text.rfind("\n", 0, label.start()) + 1


def _opens_line(text: str, label: re.Match[str]) -> bool:
    return LINE_START.search(text, max(0, label.start() - 12), label.start()) is not None


def _unbracketed(text: str, at: int) -> tuple[list[str], int]:
    """Returns the bullets at offset `at`, or else the rest of the line, and their end offset."""
    lines = []
    while bullet := BULLET.match(text, at):
        lines.append(bullet[1].strip())
        at = bullet.end()
    end = at if lines else text.find("\n", at) % (len(text) + 1)
    return lines or [text[at:end].strip()], end


def _items(line: str, name: str) -> list[Any]:
    plain = name == "subtasks" and line[:1] not in QUOTES
    return [line] if plain else LenientReader(line, []).values()


def _lists(text: str, columns: list[_Column], *, complete: bool) -> ExtractedPlan | None:
    """Builds a plan from the last complete group of three lists."""
    groups: list[dict[str, _Column]] = [{}]
    for column in columns:
        if column.name in groups[-1]:
            groups.append({})
        groups[-1][column.name] = column
    complete_groups = [group for group in groups if len(group) == len(LABELS)]
    if not complete_groups:
        return None
    group = complete_groups[-1]
    repairs = [note for column in group.values() for note in column.repairs]
    if len(complete_groups) > 1:
        repairs.append(f"of {len(complete_groups)} plans the last was taken")
    if tuple(group) != LABELS:
        repairs.append(f"the lists stood in the order {', '.join(group)}")
    start, end = min(column.start for column in group.values()), max(column.end for column in group.values())
    steps, notes = _zip_lists({label: group[label].items for label in LABELS}, complete=complete)
    repairs += notes
    return ExtractedPlan("lists", text[:start].strip(" \t\n{"), steps, [*repairs, *_trailing(text, end)])


def _zip_lists(lists: dict[str, list[Any]], *, complete: bool) -> tuple[list[RawStep], list[str]]:
    """Creates a step for each subtask, and describes the repairs.

    No subtask is dropped for lack of a worker, since the last one writes the answer; that is an error instead.
    """
    workers, subtasks, access = (lists[label] for label in LABELS)
    if len(workers) == len(subtasks) == 1 and not access:
        return [RawStep(subtasks[0], workers[0], [])], ["an empty access list was read as that of the only step"]
    count = len(subtasks)
    lengths = ", ".join(f"{len(lists[label])} in {label}" for label in LABELS)
    missing = [label for label in LABELS if len(lists[label]) < (count or max(map(len, lists.values())))]
    if missing and not (complete and missing == ["access_list"]):
        raise WorkflowParseError(f"the lists differ in length ({lengths}), and what is missing can't be invented")
    equal = len(workers) == len(access) == count
    notes = [] if equal else [f"the lists differ in length ({lengths}) and were read as {count} steps"]
    if missing:
        notes.append(COMPLETED_ACCESS)
    access = [*access, *[[ALL]] * (count - len(access))]
    return list(map(RawStep, subtasks, workers[:count], access[:count])), notes


def _trailing(text: str, end: int) -> list[str]:
    return ["text after the plan was dropped"] if text[end:].strip(" \t\n\r*`}])") else []


def _missing(columns: list[_Column]) -> str:
    present = {column.name for column in columns}
    missing = [label for label in LABELS if label not in present]
    if present and missing:
        return f"no list {' and no '.join(missing)}"
    return f"no plan: neither the lists {', '.join(LABELS)} nor steps as JSON objects or arrays"


# ------------------------------------------------------------------------------------- steps as objects


def _steps(text: str) -> ExtractedPlan | None:
    """Builds a plan from the last object with steps, or else from all objects that are steps."""
    objects = list(_objects(text))
    plans = [plan for plan, is_whole in objects if is_whole]
    if plans:
        repairs = [f"of {len(plans)} plans the last was taken"] if len(plans) > 1 else []
        return plans[-1]._replace(repairs=[*plans[-1].repairs, *repairs])
    if not objects:
        return None
    separate = [plan for plan, _ in objects]
    steps = [step for plan in separate for step in plan.steps]
    repairs = [note for plan in separate for note in plan.repairs]
    return separate[0]._replace(steps=steps, repairs=[*([SEPARATE_STEPS] if steps else []), *repairs])


def _objects(text: str) -> Iterator[tuple[ExtractedPlan, bool]]:
    """Yields every object that is a step, contains steps or accepts the previous answer, and whether it is a plan."""
    reader = LenientReader(text, [])
    for opening in OBJECT.finditer(text):
        if opening.start() < reader.at:
            continue
        previous_notes, reader.at = len(reader.notes), opening.start()
        data = reader.value()
        raw_steps = list(_find_steps(data))
        before = text[: opening.start()].strip(" \t\n[")
        odd = sorted({name for step in raw_steps for name in step} - set(RawStep._fields))
        repairs = [*reader.notes[previous_notes:], *([f"odd names in steps: {', '.join(odd)}"] if odd else [])]
        names = (SUBTASK, WORKER, ACCESS, INPUTS)
        steps = [RawStep(*(_cell(step, name) for name in names)) for step in raw_steps]
        if raw_steps == [data]:
            yield ExtractedPlan("object", before, steps, repairs), False
        elif steps or NO_STEPS.search(text, opening.start(), reader.at):
            reasoning = "\n".join(part for part in (before, str(data.get("reasoning") or "")) if part)
            yield ExtractedPlan("object", reasoning, steps, repairs), True
        elif isinstance(data, dict) and data.get("accept") is True:
            yield ExtractedPlan("object", before, [], repairs), False


def _find_steps(data: Any) -> Iterator[dict[str, Any]]:
    """Yields the steps in `data`, at any depth."""
    if isinstance(data, dict) and isinstance(_cell(data, SUBTASK), str | int):
        yield data
    elif isinstance(data, dict | list):
        for part in data.values() if isinstance(data, dict) else data:
            yield from _find_steps(part)


def _cell(data: dict[str, Any], names: str) -> Any:
    return next((value for name, value in data.items() if re.fullmatch(names, name)), None)


# -------------------------------------------------------------------------------------- steps as arrays


def _rows(text: str, form: Form, *, complete: bool) -> ExtractedPlan | None:
    """Builds a plan from all arrays that are steps; in the form `rows`, also from an empty array at the end."""
    openings = list(ROW.finditer(text))
    reader = LenientReader(text, [opening.start("row") for opening in openings])
    steps: list[RawStep] = []
    start = end = 0
    for opening in openings:
        if opening.start("row") < reader.at:
            continue
        reader.at = opening.start("row")
        while (step := _row(reader)) is not None:
            start, end = start if steps else opening.start(), reader.at
            steps.append(step)
            following = NEXT_ROW.match(text, reader.at)
            if following is None:
                break
            reader.at = following.end()
    if steps:
        steps, notes = _complete_access(steps, complete=complete)
        notes = [*reader.notes, *notes, *_trailing(text, end)]
        return ExtractedPlan("rows", text[:start].strip(" \t\n["), steps, notes)
    empty = NO_ROWS.search(text) if form == "rows" else None
    return ExtractedPlan("rows", text[: empty.start()].strip(), [], []) if empty else None


def _row(reader: LenientReader) -> RawStep | None:
    """Reads the array at the reader's offset; `None` if it is not a step."""
    match reader.value():
        case [int() as worker, str() as subtask]:
            return RawStep(subtask, worker, None)
        case [int() | str() as worker, str() as subtask, list() | str() as access, *inputs] if len(inputs) <= 1:
            return RawStep(subtask, worker, access, *inputs)
        case _:
            return None


def _complete_access(steps: list[RawStep], *, complete: bool) -> tuple[list[RawStep], list[str]]:
    """Lets steps without an access list read every earlier step, and says so."""
    if all(step.access is not None for step in steps):
        return steps, []
    if not complete:
        raise WorkflowParseError('a step has no access list; write [0, "...", []] for each')
    completed = [step if step.access is not None else step._replace(access=[ALL]) for step in steps]
    return completed, [COMPLETED_ACCESS]
