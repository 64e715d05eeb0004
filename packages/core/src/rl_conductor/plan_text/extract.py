"""Finds the plan in what a model wrote, in whichever form, and takes it apart into steps. Pure.

Knows how models misspell plans, not what may be planned: `repair` fits the steps to a space.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from rl_conductor.errors import WorkflowParseError
from rl_conductor.plan_text.forms import ALL, LABELS, Form, WrittenStep
from rl_conductor.plan_text.lenient_json import QUOTES, Reader

SUBTASK = r"(?:sub[ _-]?)?tasks?(?:[ _-]list)?|instructions?"
WORKER = r"(?:model|worker|agent)s?[ _-]?(?:ids?|list)?"
ACCESS = r"access(?:[ _-]?lists?)?"
"""How each column is called by models that call it otherwise."""

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
NO_STEPS = re.compile(rf"[{QUOTES}]?steps[{QUOTES}]?\s{{0,9}}[:=]\s{{0,9}}\[\s{{0,99}}\]", re.IGNORECASE)


class Salvaged(NamedTuple):
    """A plan as its steps were written, before any space has been asked."""

    form: Form
    reasoning: str
    steps: list[WrittenStep]
    repairs: list[str]


class _Column(NamedTuple):
    """One list, and where it was found."""

    name: str
    items: list[Any]
    start: int
    end: int
    bracketed: bool
    repairs: list[str]


def salvaged(text: str, form: Form, *, complete: bool = True) -> Salvaged:
    """The plan in `text`, the form asked for first.

    Args:
        text: what a model wrote.
        form: the form that was asked for.
        complete: whether steps without an access list get one; otherwise lists that miss an entry are an error.

    Raises:
        WorkflowParseError: there is none in any form, or a list misses an entry.
    """
    clean, thought, repairs = _cleaned(text)
    columns = list(_columns(clean))
    bracketed = [column for column in columns if column.bracketed]
    readers: list[Callable[[], Salvaged | None]] = [
        partial(_lists, clean, bracketed, complete=complete),
        partial(_steps, clean),
        partial(_lists, clean, columns, complete=complete),
    ]
    if form != "lists":
        readers[:2] = readers[1::-1]
    found = next((plan for reader in readers if (plan := reader())), None)
    if found is None:
        raise WorkflowParseError(_missing(columns))
    if found.form != form:
        repairs.append(f"the plan was in the form {found.form!r}, not {form!r}")
    reasoning = "\n".join(part for part in (thought, found.reasoning) if part)
    return found._replace(reasoning=reasoning, repairs=[*repairs, *found.repairs])


def _cleaned(text: str) -> tuple[str, str, list[str]]:
    """`text` without thoughts and fences, the thoughts, and what was done."""
    repairs = []
    clean = text.encode("utf-8", "replace").decode().replace("\r\n", "\n")
    thought = ""
    if tags := list(THOUGHT.finditer(clean)):
        repairs.append("a thinking block was taken as reasoning")
        closing = [tag.end() for tag in tags if tag[0].startswith("</")]
        cut = closing[-1] if closing and clean[closing[-1] :].strip() else 0
        thought, clean = THOUGHT.sub("", clean[:cut]).strip(), THOUGHT.sub("", clean[cut:])
    unfenced = FENCE.sub("", clean)
    if unfenced != clean:
        repairs.append("code fences were dropped")
    return unfenced, thought, repairs


# ---------------------------------------------------------------------------------------- three lists


def _columns(text: str) -> Iterator[_Column]:
    """Every labelled list, in the order written; what looks like a label inside a list is not one."""
    labels = [(label, _opens_line(text, label)) for label in LABEL.finditer(text)]
    reader = Reader(text, [_line_start(text, label) for label, opens in labels if opens])
    for label, opens in labels:
        if label.start() < reader.at:
            continue
        name = label.lastgroup or ""
        renamed = [] if label[name] == name else [f"{label[name]!r} was read as {name!r}"]
        if text.startswith(("[", "("), label.end()):
            known, reader.at = len(reader.notes), label.end()
            items = reader.value() or []
            yield _Column(
                name,
                items,
                _line_start(text, label) if opens else label.start(),
                reader.at,
                True,
                [*renamed, *reader.notes[known:]],
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
    """The bullets that stand at `at`, else the rest of the line; and where they end."""
    lines = []
    while bullet := BULLET.match(text, at):
        lines.append(bullet[1].strip())
        at = bullet.end()
    end = at if lines else text.find("\n", at) % (len(text) + 1)
    return lines or [text[at:end].strip()], end


def _items(line: str, name: str) -> list[Any]:
    plain = name == "subtasks" and line[:1] not in QUOTES
    return [line] if plain else Reader(line, []).values()


def _lists(text: str, columns: list[_Column], *, complete: bool) -> Salvaged | None:
    """The last three lists that belong together."""
    groups: list[dict[str, _Column]] = [{}]
    for column in columns:
        if column.name in groups[-1]:
            groups.append({})
        groups[-1][column.name] = column
    whole = [group for group in groups if len(group) == len(LABELS)]
    if not whole:
        return None
    group = whole[-1]
    repairs = [note for column in group.values() for note in column.repairs]
    if len(whole) > 1:
        repairs.append(f"of {len(whole)} plans the last was taken")
    if tuple(group) != LABELS:
        repairs.append(f"the lists stood in the order {', '.join(group)}")
    start, end = min(column.start for column in group.values()), max(column.end for column in group.values())
    steps, notes = _zipped({label: group[label].items for label in LABELS}, complete=complete)
    repairs += notes
    return Salvaged("lists", text[:start].strip(" \t\n{"), steps, [*repairs, *_trailing(text, end)])


def _zipped(lists: dict[str, list[Any]], *, complete: bool) -> tuple[list[WrittenStep], list[str]]:
    """A step for each subtask. The last one writes the answer, so that none is left out: what it lacks is an error."""
    workers, subtasks, access = (lists[label] for label in LABELS)
    if len(workers) == len(subtasks) == 1 and not access:
        return [WrittenStep(subtasks[0], workers[0], [])], ["an empty access list was read as that of the only step"]
    wanted = len(subtasks)
    lengths = ", ".join(f"{len(lists[label])} in {label}" for label in LABELS)
    missing = [label for label in LABELS if len(lists[label]) < (wanted or max(map(len, lists.values())))]
    if missing and not (complete and missing == ["access_list"]):
        raise WorkflowParseError(f"the lists differ in length ({lengths}), and what is missing can't be invented")
    alike = len(workers) == len(access) == wanted
    notes = [] if alike else [f"the lists differ in length ({lengths}) and were read as {wanted} steps"]
    if missing:
        notes.append("a step without an access list was taken to read every earlier step")
    access = [*access, *[[ALL]] * (wanted - len(access))]
    return list(map(WrittenStep, subtasks, workers[:wanted], access[:wanted])), notes


def _trailing(text: str, end: int) -> list[str]:
    return ["text after the plan was dropped"] if text[end:].strip(" \t\n\r*`}])") else []


def _missing(columns: list[_Column]) -> str:
    found = {column.name for column in columns}
    missing = [label for label in LABELS if label not in found]
    if found and missing:
        return f"no list {' and no '.join(missing)}"
    return f"no plan: neither the lists {', '.join(LABELS)} nor steps as JSON objects"


# ------------------------------------------------------------------------------------- steps as objects


def _steps(text: str) -> Salvaged | None:
    """The steps of the last object that holds steps, or all the steps that stand alone."""
    objects = list(_objects(text))
    whole = [found for found in objects if found.form == "object"]
    if whole:
        repairs = [f"of {len(whole)} plans the last was taken"] if len(whole) > 1 else []
        return whole[-1]._replace(repairs=[*whole[-1].repairs, *repairs])
    if not objects:
        return None
    steps = [step for found in objects for step in found.steps]
    return objects[0]._replace(steps=steps, repairs=[note for found in objects for note in found.repairs])


def _objects(text: str) -> Iterator[Salvaged]:
    """Every object that is a step, holds steps or accepts."""
    reader = Reader(text, [])
    for opening in OBJECT.finditer(text):
        if opening.start() < reader.at:
            continue
        known, reader.at = len(reader.notes), opening.start()
        data = reader.value()
        held = list(_held(data))
        before = text[: opening.start()].strip(" \t\n[")
        odd = sorted({name for step in held for name in step} - set(WrittenStep._fields))
        repairs = [*reader.notes[known:], *([f"odd names in steps: {', '.join(odd)}"] if odd else [])]
        steps = [WrittenStep(*(_cell(step, names) for names in (SUBTASK, WORKER, ACCESS))) for step in held]
        if held == [data]:
            yield Salvaged("lines", before, steps, repairs)
        elif steps or NO_STEPS.search(text, opening.start(), reader.at):
            reasoning = "\n".join(part for part in (before, str(data.get("reasoning") or "")) if part)
            yield Salvaged("object", reasoning, steps, repairs)
        elif isinstance(data, dict) and data.get("accept") is True:
            yield Salvaged("lines", before, [], repairs)


def _held(data: Any) -> Iterator[dict[str, Any]]:
    """The steps in `data`, however deep."""
    if isinstance(data, dict) and isinstance(_cell(data, SUBTASK), str | int):
        yield data
    elif isinstance(data, dict | list):
        for part in data.values() if isinstance(data, dict) else data:
            yield from _held(part)


def _cell(data: dict[str, Any], names: str) -> Any:
    return next((value for name, value in data.items() if re.fullmatch(names, name)), None)
