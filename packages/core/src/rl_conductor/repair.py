"""Fits salvaged rows to a space: what was meant by a worker's name, a long plan, an access list. Pure.

A repair never lifts a rule: a forbidden worker and a forbidden `"all"` stay what they are, and `PlanSpace.check` judges
the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rl_conductor.errors import WorkflowParseError, WorkflowValidationError
from rl_conductor.plan import Row
from rl_conductor.workflow import PlanSpace, Step

WHOLE = {"all", "any", "every", "everything", "previous", "true", "yes"}
EARLIER = {"before", "earlier", "earlier rounds"}
NOTHING = {"", "none", "no", "null", "nothing", "false", "empty", "n/a"}
WORKER_ID = re.compile(r"(?:model|worker|agent|id)?[\s_#:=-]{0,3}(\d{1,4})", re.IGNORECASE)
STEP_ID = re.compile(r"(?:step|subtask|task)?[\s_#:=-]{0,3}(\d{1,4})", re.IGNORECASE)


def mended(rows: list[Row], space: PlanSpace) -> tuple[tuple[Step, ...], list[str]]:
    """The steps that `rows` mean, and what had to be put right, in plain words.

    Raises:
        WorkflowParseError: a row lacks what can't be invented.
        WorkflowValidationError: a worker is meant who does not exist.
    """
    repairs = []
    if len(rows) > space.max_steps:
        repairs.append(f"a plan of {len(rows)} steps was cut to {space.max_steps}")
    steps: tuple[Step, ...] = ()
    for row in rows[: space.max_steps]:
        step, notes = _step(row, steps, space)
        repairs += [f"step {len(steps) + 1}: {note}" for note in notes]
        steps = (*steps, step)
    return steps, repairs


def _step(row: Row, earlier: tuple[Step, ...], space: PlanSpace) -> tuple[Step, list[str]]:
    where = f"step {len(earlier) + 1}"
    worker, named = _worker(row.worker, where, space)
    subtask, cut = _subtask(row.subtask, where, space)
    access, recall, narrowed = _access(row.access, worker, earlier, space)
    return Step(subtask=subtask, worker=worker, access=access, recall=recall), [*named, *cut, *narrowed]


# ------------------------------------------------------------------------------------ workers and subtasks


def _worker(written: Any, where: str, space: PlanSpace) -> tuple[str, list[str]]:
    value = _only(written)
    position = value if type(value) is int else _position(value, space)
    if position is None:
        raise WorkflowParseError(f"{where}: no worker can be made of {written!r}")
    if not 0 <= position < len(space.roster):
        problem = f"{where}: there is no worker {position}; there are 0 to {len(space.roster) - 1}"
        raise WorkflowValidationError(problem, violations=(problem,))
    same = type(written) is int
    return space.roster[position], [] if same else [f"{written!r} was read as worker {position}"]


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


def _access(
    written: Any, worker: str, earlier: tuple[Step, ...], space: PlanSpace
) -> tuple[frozenset[int], bool, list[str]]:
    """What a step reads, and whether it recalls the earlier rounds."""
    every = frozenset(range(len(earlier)))
    found = set(_marks(written))
    strange = sorted(str(mark) for mark in found - every - {"all", "before"})
    notes = [f"access to {', '.join(strange)} was dropped"] if strange else []
    whole, before, some = "all" in found, "before" in found, frozenset(i for i in found if i in every)
    if before and space.recalled is None:
        before, notes = False, [*notes, "there is no earlier round to read"]
    if whole and not every and space.recalled is None:
        notes.append("the first step has nothing to read")
    if space.access == "positional":
        if whole:
            notes.append("access to 'all' was read as every earlier step")
        return (every if whole else some), before or (whole and space.recalled is not None), notes
    if not whole and (some or before):
        whole = _readable(worker, earlier, space)
        notes.append(f"access to some steps was read as {'all' if whole else 'none, since it may not read them all'}")
    return (every if whole else frozenset()), whole and space.recalled is not None, notes


def _marks(written: Any) -> Iterator[int | str]:
    """The positions, `all` and `before` that an access list means, whatever its depth; the rest as it is."""
    if isinstance(written, list):
        for item in written:
            yield from _marks(item)
    elif isinstance(written, str) and "," in written:
        yield from _marks(written.split(","))
    elif isinstance(written, int) and not isinstance(written, bool):
        yield written
    elif (word := str(written).strip(" []()'\"`.").casefold()) in WHOLE:
        yield "all"
    elif word in EARLIER:
        yield "before"
    elif word not in NOTHING:
        number = STEP_ID.fullmatch(word)
        yield int(number[1]) if number else word


def _readable(worker: str, earlier: tuple[Step, ...], space: PlanSpace) -> bool:
    sources = {step.worker for step in earlier} | (space.recalled or frozenset())
    return all(space.may_read(worker, source) for source in sources)
