"""Normalises extracted steps for a space: worker names, long subtasks and access lists. Pure.

A repair never bypasses a rule: a forbidden worker and a forbidden `"all"` stay as they are, and `PlanSpace.check`
checks the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rl_conductor.errors import WorkflowParseError
from rl_conductor.plan_text.forms import ALL, BEFORE, RawStep, access_text, inputs_text
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.workflow import Step

ALL_WORDS = {"all", "any", "every", "everything", "previous", "true", "yes"}
BEFORE_WORDS = {"before", "earlier", "earlier rounds"}
WORKER_ID = re.compile(r"(?:model|worker|agent|id)?[\s_#:=-]{0,3}(\d{1,4})", re.IGNORECASE)
STEP_ID = re.compile(r"(?:step|subtask|task)?[\s_#:=-]{0,3}(\d{1,4})", re.IGNORECASE)


def repair_steps(raw_steps: list[RawStep], space: PlanSpace) -> tuple[tuple[Step, ...], list[str]]:
    """Converts raw steps into steps, and describes each repair.

    Raises:
        WorkflowParseError: a step has no recognisable worker or subtask.
        WorkflowValidationError: a worker does not exist.
    """
    repairs = []
    steps: tuple[Step, ...] = ()
    for raw in raw_steps:
        step, notes = _step(raw, steps, space)
        repairs += [f"step {len(steps) + 1}: {note}" for note in notes]
        steps = (*steps, step)
    return steps, repairs


def _step(raw: RawStep, earlier: tuple[Step, ...], space: PlanSpace) -> tuple[Step, list[str]]:
    where = f"step {len(earlier) + 1}"
    worker, worker_repairs = _worker(raw.worker, where, space)
    subtask, subtask_repairs = _subtask(raw.subtask, where, space)
    access, recall = _access(raw.access, worker, earlier, space)
    step = Step(subtask=subtask, worker=worker, access=access, recall=recall, inputs=_inputs(raw.inputs, space))
    canonical = access_text(step, len(earlier), space)
    access_repairs = [] if raw.access == canonical else [f"access {raw.access!r} was read as {canonical!r}"]
    inputs = inputs_text(step, space) if space.inputs else None
    inputs_repairs = [] if raw.inputs == inputs else [f"inputs {raw.inputs!r} were read as {inputs or [ALL]!r}"]
    return step, [*worker_repairs, *subtask_repairs, *access_repairs, *inputs_repairs]


# ------------------------------------------------------------------------------------ workers and subtasks


def _worker(raw: Any, where: str, space: PlanSpace) -> tuple[str, list[str]]:
    value = _unwrap(raw)
    position = value if type(value) is int else _position(value, space)
    if position is None:
        raise WorkflowParseError(f"{where}: no worker can be made of {raw!r}")
    worker = space.worker(position, where=where)
    return worker, [] if type(raw) is int else [f"{raw!r} was read as worker {position}"]


def _position(value: Any, space: PlanSpace) -> int | None:
    if not isinstance(value, str):
        return None
    names = [name.casefold() for name in space.roster]
    if not value.isdigit() and names.count(value.casefold()) == 1:
        return names.index(value.casefold())
    number = WORKER_ID.fullmatch(value.strip())
    return int(number[1]) if number else None


def _subtask(raw: Any, where: str, space: PlanSpace) -> tuple[str, list[str]]:
    value = _unwrap(raw)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise WorkflowParseError(f"{where}: no subtask can be made of {raw!r}")
    text = str(value).lstrip()
    if len(text) > space.subtask_chars:
        return text[: space.subtask_chars], [f"a subtask of {len(text)} characters was cut to {space.subtask_chars}"]
    return text, []


def _unwrap(value: Any) -> Any:
    """Returns the item of a list with a single item; else `value` itself."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


# ------------------------------------------------------------------------------------------------- access


def _access(raw: Any, worker: str, earlier: tuple[Step, ...], space: PlanSpace) -> tuple[frozenset[int], bool]:
    """Returns the steps that a step reads, and whether it recalls earlier rounds; invalid entries are dropped."""
    entries = set(_entries(raw))
    every, later = frozenset(range(len(earlier))), space.recallable is not None
    some, reads_all, before = every & entries, ALL in entries, BEFORE in entries and later
    if space.access == "positional":
        return (every if reads_all else some), before or (reads_all and later)
    if not reads_all and (some or before):
        # Some steps become all steps, unless only that breaks a rule; a forbidden step in the list stays an error.
        reached = some.union(*(earlier[i].access for i in some))
        recalls = before or any(earlier[i].recall for i in reached)
        may_read_all = _may_read(worker, every, later, earlier, space)
        reads_all = may_read_all or not _may_read(worker, reached, recalls, earlier, space)
    return (every if reads_all else frozenset()), reads_all and later


def _inputs(raw: Any, space: PlanSpace) -> frozenset[str] | None:
    """Returns the inputs that a step sees; without a list of known names, all of them."""
    words = {str(item).strip().casefold() for item in (raw if isinstance(raw, list) else [raw])}
    selected = [name for name in space.inputs if name in words]
    if not space.inputs or raw is None or ALL in words or len(selected) < len(words):
        return None
    return space.shared_inputs.union(selected)


def _may_read(worker: str, steps: frozenset[int], recalls: bool, earlier: tuple[Step, ...], space: PlanSpace) -> bool:
    sources = {earlier[i].worker for i in steps} | ((space.recallable or frozenset()) if recalls else frozenset())
    return all(space.may_read(worker, source) for source in sources)


def _entries(raw: Any) -> Iterator[int | str]:
    """Yields the positions, `all` and `before` in a raw access list of any depth."""
    if isinstance(raw, list):
        for item in raw:
            yield from _entries(item)
    elif isinstance(raw, str) and "," in raw:
        yield from _entries(raw.split(","))
    elif isinstance(raw, int) and not isinstance(raw, bool):
        yield raw
    elif (word := str(raw).strip(" []()'\"`.").casefold()) in ALL_WORDS:
        yield ALL
    elif word in BEFORE_WORDS:
        yield BEFORE
    elif number := STEP_ID.fullmatch(word):
        yield int(number[1])
