"""Fits salvaged steps to a space: what was meant by a worker's name, a long subtask, an access list. Pure.

A repair never lifts a rule: a forbidden worker and a forbidden `"all"` stay what they are, and `PlanSpace.check` judges
the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rl_conductor.errors import WorkflowParseError
from rl_conductor.plan_text.forms import ALL, BEFORE, WrittenStep, access_text
from rl_conductor.workflow.workflow import PlanSpace, Step

WHOLE = {"all", "any", "every", "everything", "previous", "true", "yes"}
EARLIER = {"before", "earlier", "earlier rounds"}
WORKER_ID = re.compile(r"(?:model|worker|agent|id)?[\s_#:=-]{0,3}(\d{1,4})", re.IGNORECASE)
STEP_ID = re.compile(r"(?:step|subtask|task)?[\s_#:=-]{0,3}(\d{1,4})", re.IGNORECASE)


def mended(written: list[WrittenStep], space: PlanSpace) -> tuple[tuple[Step, ...], list[str]]:
    """The steps that were meant, and what had to be put right, in plain words.

    Raises:
        WorkflowParseError: a step lacks what can't be invented.
        WorkflowValidationError: a worker is meant who does not exist.
    """
    repairs = []
    steps: tuple[Step, ...] = ()
    for one in written:
        step, notes = _step(one, steps, space)
        repairs += [f"step {len(steps) + 1}: {note}" for note in notes]
        steps = (*steps, step)
    return steps, repairs


def _step(written: WrittenStep, earlier: tuple[Step, ...], space: PlanSpace) -> tuple[Step, list[str]]:
    where = f"step {len(earlier) + 1}"
    worker, named = _worker(written.worker, where, space)
    subtask, cut = _subtask(written.subtask, where, space)
    access, recall = _access(written.access, worker, earlier, space)
    step = Step(subtask=subtask, worker=worker, access=access, recall=recall)
    spelled = access_text(step, len(earlier), space)
    changed = [] if written.access == spelled else [f"access {written.access!r} was read as {spelled!r}"]
    return step, [*named, *cut, *changed]


# ------------------------------------------------------------------------------------ workers and subtasks


def _worker(written: Any, where: str, space: PlanSpace) -> tuple[str, list[str]]:
    value = _only(written)
    position = value if type(value) is int else _position(value, space)
    if position is None:
        raise WorkflowParseError(f"{where}: no worker can be made of {written!r}")
    worker = space.worker(position, where=where)
    same = type(written) is int
    return worker, [] if same else [f"{written!r} was read as worker {position}"]


def _position(value: Any, space: PlanSpace) -> int | None:
    if not isinstance(value, str):
        return None
    names = [name.casefold() for name in space.roster]
    if not value.isdigit() and names.count(value.casefold()) == 1:
        return names.index(value.casefold())
    found = WORKER_ID.fullmatch(value.strip())
    return int(found[1]) if found else None


def _subtask(written: Any, where: str, space: PlanSpace) -> tuple[str, list[str]]:
    value = _only(written)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise WorkflowParseError(f"{where}: no subtask can be made of {written!r}")
    text = str(value).lstrip()
    if len(text) > space.subtask_chars:
        return text[: space.subtask_chars], [f"a subtask of {len(text)} characters was cut to {space.subtask_chars}"]
    return text, []


def _only(value: Any) -> Any:
    """The one item of a list of one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


# ------------------------------------------------------------------------------------------------- access


def _access(written: Any, worker: str, earlier: tuple[Step, ...], space: PlanSpace) -> tuple[frozenset[int], bool]:
    """What a step reads, and whether it recalls the earlier rounds; what does not exist is left out."""
    found = set(_marks(written))
    every, later = frozenset(range(len(earlier))), space.recalled is not None
    some, whole, before = frozenset(i for i in every if i in found), ALL in found, BEFORE in found and later
    if space.access == "positional":
        return (every if whole else some), before or (whole and later)
    if not whole and (some or before):
        # All is read for some, unless only that would break a rule; a forbidden step that was named stays an error.
        named = some.union(*(earlier[i].access for i in some))
        recalls = before or any(earlier[i].recall for i in named)
        whole = _readable(worker, every, later, earlier, space) or not _readable(worker, named, recalls, earlier, space)
    return (every if whole else frozenset()), whole and later


def _readable(worker: str, steps: frozenset[int], recalls: bool, earlier: tuple[Step, ...], space: PlanSpace) -> bool:
    sources = {earlier[i].worker for i in steps} | ((space.recalled or frozenset()) if recalls else frozenset())
    return all(space.may_read(worker, source) for source in sources)


def _marks(written: Any) -> Iterator[int | str]:
    """The positions, `all` and `before` that an access list means, whatever its depth."""
    if isinstance(written, list):
        for item in written:
            yield from _marks(item)
    elif isinstance(written, str) and "," in written:
        yield from _marks(written.split(","))
    elif isinstance(written, int) and not isinstance(written, bool):
        yield written
    elif (word := str(written).strip(" []()'\"`.").casefold()) in WHOLE:
        yield ALL
    elif word in EARLIER:
        yield BEFORE
    elif number := STEP_ID.fullmatch(word):
        yield int(number[1])
