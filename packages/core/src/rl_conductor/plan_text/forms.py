"""The three forms of plan text, and the canonical rendering of a workflow in each.

    lists    reasoning, then the paper's three lists, one line each
    rows     reasoning, then one JSON array per line for each step, [worker, "subtask", access]: steps can start early
    object   one JSON object, for vendors that support a JSON schema

The object has no spaces, so that worked examples take fewer tokens, and so do the plans of models that imitate them.

A worker is written as its position in the roster. Access is `[]` or `["all"]` in a binary space, and a list of earlier
positions in a positional one. In a later round `"all"` includes the earlier rounds; positional access writes
`"before"` for them. An empty plan accepts the answer of the previous round.

If the user's input has several parts (`PlanSpace.inputs`), each step of `rows` and `object` also lists those that
it sees, or `["all"]`. In `lists`, every step sees everything.
"""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

from rl_conductor.errors import ConfigError
from rl_conductor.types import Value
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.workflow import Step, Workflow

Form = Literal["lists", "rows", "object"]

LABELS = ("model_id", "subtasks", "access_list")
ACCEPT = "[]"
"""The plan in `rows` that accepts the answer of the previous round."""
ALL = "all"
BEFORE = "before"


class Plan(Value):
    """A parsed plan with its reasoning and repairs."""

    workflow: Workflow | None
    """`None` accepts the answer of the previous round."""
    reasoning: str = ""
    """The text before the plan."""
    repairs: tuple[str, ...] = ()
    """Descriptions of the mistakes that were repaired."""
    form: Form = "lists"


class RawStep(NamedTuple):
    """The fields of a step as parsed, before validation."""

    subtask: Any
    worker: Any
    access: Any
    inputs: Any = None


def render(workflow: Workflow | None, space: PlanSpace, form: Form = "lists", *, reasoning: str = "") -> str:
    """Renders `workflow` as plan text; `None` renders the plan that accepts the answer of the previous round.

    Raises:
        ConfigError: a worker is not in the roster, or a binary space can't express the access list of a step.
    """
    steps = workflow.steps if workflow else ()
    with_inputs = bool(space.inputs) and form != "lists"
    rows = [_record(step, index, space, with_inputs=with_inputs) for index, step in enumerate(steps)]
    if form == "object":
        return json.dumps({"reasoning": reasoning, "steps": rows}, ensure_ascii=False, separators=(",", ":"))
    lead = f"{reasoning}\n" if reasoning else ""
    if form == "rows":
        return lead + ("\n".join([dumps(as_row(row)) for row in rows]) or ACCEPT)
    columns = zip(LABELS, ("worker", "subtask", "access"), strict=True)
    return lead + "\n".join([f"{label} = {dumps([row[key] for row in rows])}" for label, key in columns])


def as_row(step: dict[str, Any]) -> list[Any]:
    """Returns the fields of a step in the order of the form `rows`."""
    return [step[name] for name in ("worker", "subtask", "access", "inputs") if name in step]


def dumps(value: Any) -> str:
    """Serialises `value` as canonical JSON of plans."""
    return json.dumps(value, ensure_ascii=False)


def _record(step: Step, index: int, space: PlanSpace, *, with_inputs: bool) -> dict[str, Any]:
    if step.worker not in space.roster:
        raise ConfigError(f"there is no worker {step.worker!r} in the roster: {', '.join(space.roster)}")
    worker = space.roster.index(step.worker)
    row = {"subtask": step.subtask, "worker": worker, "access": access_text(step, index, space)}
    return row | {"inputs": inputs_text(step, space)} if with_inputs else row


def inputs_text(step: Step, space: PlanSpace) -> list[str]:
    """Renders the inputs of `step` that plans may name, in the order of the space."""
    return [ALL] if step.inputs is None else [name for name in space.inputs if name in step.inputs]


def access_text(step: Step, index: int, space: PlanSpace) -> list[str | int]:
    """Renders the access list of `step` at position `index`."""
    if space.access == "positional":
        return [*([BEFORE] if step.recall else []), *sorted(step.access)]
    if step.access not in (frozenset(), frozenset(range(index))):
        raise ConfigError(f"step {index} reads {sorted(step.access)}: a binary space spells all earlier steps or none")
    return [ALL] if step.access or step.recall else []
