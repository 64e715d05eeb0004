"""The plan language: three forms, and the one way to spell a workflow in each.

    lists    reasoning, then the paper's three lists, a line each
    lines    reasoning, then a JSON object a line for each step, so that a step can start while the next is written
    object   one JSON object, for vendors that decode by a JSON schema

A worker is written as its position in the roster. Access is `[]` or `["all"]` in a binary space, and earlier
positions in a positional one. In a later round `"all"` covers the earlier rounds too; positional access says
`"before"` for them. An empty plan accepts the answer of the round before.
"""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

from rl_conductor.errors import ConfigError
from rl_conductor.types import Value
from rl_conductor.workflow.workflow import PlanSpace, Step, Workflow

Form = Literal["lists", "lines", "object"]

LABELS = ("model_id", "subtasks", "access_list")
ACCEPT = '{"accept": true}'
ALL = "all"
BEFORE = "before"


class Plan(Value):
    """What a plan text says."""

    workflow: Workflow | None
    """`None` accepts the answer of the round before."""
    reasoning: str = ""
    """What stood before the plan."""
    repairs: tuple[str, ...] = ()
    """What had to be put right to read it, in plain words."""
    form: Form = "lists"


class WrittenStep(NamedTuple):
    """A step as it was written, whatever that is."""

    subtask: Any
    worker: Any
    access: Any


def render(workflow: Workflow | None, space: PlanSpace, form: Form = "lists", *, reasoning: str = "") -> str:
    """`workflow` in the plan language; `None` is the plan that accepts the answer of the round before.

    Raises:
        ConfigError: a worker is not in the roster, or a binary space can't spell what a step reads.
    """
    steps = workflow.steps if workflow else ()
    rows = [_record(step, index, space) for index, step in enumerate(steps)]
    if form == "object":
        return dumps({"reasoning": reasoning, "steps": rows})
    lead = f"{reasoning}\n" if reasoning else ""
    if form == "lines":
        return lead + ("\n".join(dumps(row) for row in rows) or ACCEPT)
    columns = zip(LABELS, ("worker", "subtask", "access"), strict=True)
    return lead + "\n".join(f"{label} = {dumps([row[key] for row in rows])}" for label, key in columns)


def dumps(value: Any) -> str:
    """`value` as JSON in the one spelling that plans use."""
    return json.dumps(value, ensure_ascii=False)


def _record(step: Step, index: int, space: PlanSpace) -> dict[str, Any]:
    if step.worker not in space.roster:
        raise ConfigError(f"there is no worker {step.worker!r} in the roster: {', '.join(space.roster)}")
    worker = space.roster.index(step.worker)
    return {"subtask": step.subtask, "worker": worker, "access": access_text(step, index, space)}


def access_text(step: Step, index: int, space: PlanSpace) -> list[str | int]:
    """The access list that says what `step`, at position `index`, may read."""
    if space.access == "positional":
        return [*([BEFORE] if step.recall else []), *sorted(step.access)]
    if step.access not in (frozenset(), frozenset(range(index))):
        raise ConfigError(f"step {index} reads {sorted(step.access)}: a binary space spells all earlier steps or none")
    return [ALL] if step.access or step.recall else []
