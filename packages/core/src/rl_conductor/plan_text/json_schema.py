"""The JSON schema of a plan, for vendors with structured output.

It uses only keywords that the strict modes of OpenAI, Anthropic and Google all support. Other limits (the
length of subtasks, with some vendors the number of steps) are in descriptions, and `PlanSpace.check` enforces them.
"""

from __future__ import annotations

from typing import Any

from rl_conductor.plan_text.forms import ALL, BEFORE
from rl_conductor.workflow.plan_space import PlanSpace


def plan_schema(space: PlanSpace, *, array_bounds: bool = True) -> dict[str, Any]:
    """Creates the schema of the form `object`: all properties required, workers and access as enumerations.

    Args:
        space: the allowed plans.
        array_bounds: whether `minItems` and `maxItems` bound the number of steps; not every vendor supports them.
    """
    step: dict[str, Any] = {
        "subtask": {"type": "string", "description": f"At most {space.subtask_chars} characters."},
        "worker": {"type": "integer", "enum": [space.roster.index(name) for name in space.choices]},
        "access": {"type": "array", "items": _access(space)},
    }
    if space.inputs:
        step["inputs"] = {"type": "array", "items": {"type": "string", "enum": [ALL, *space.inputs]}}
    steps: dict[str, Any] = {"type": "array", "items": _record(step), "description": _how_many(space)}
    if array_bounds:
        steps |= {"minItems": 0 if space.may_accept else space.min_steps, "maxItems": space.max_steps}
    return _record({"reasoning": {"type": "string"}, "steps": steps})


def _record(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _access(space: PlanSpace) -> dict[str, Any]:
    word = ALL if space.access == "binary" else BEFORE
    words = {"type": "string", "enum": [word]}
    if space.access == "binary":
        return words
    # An enumeration can't be empty, so even a space of one step lists position 0.
    positions = {"type": "integer", "enum": list(range(max(1, space.max_steps - 1)))}
    return positions if space.recallable is None else {"anyOf": [words, positions]}


def _how_many(space: PlanSpace) -> str:
    accept = " or none, to accept the answer of the round before" if space.may_accept else ""
    return f"{space.min_steps} to {space.max_steps} steps{accept}."
