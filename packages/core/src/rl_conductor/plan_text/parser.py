"""From plan text to `Plan`: exactly, as `render` and the grammar write it, or with repairs. Pure.

Exact reading accepts what `render` writes and nothing else; only the JSON of `object` may be spaced and ordered
freely, since vendors do so. Either way `PlanSpace.check` has the last word: what the space forbids is never repaired
into something allowed.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from rl_conductor._internal.validation import problems
from rl_conductor.errors import WorkflowError, WorkflowParseError, WorkflowValidationError
from rl_conductor.plan_text.extract import salvaged
from rl_conductor.plan_text.forms import ACCEPT, ALL, BEFORE, LABELS, Form, Plan, WrittenStep, render
from rl_conductor.plan_text.repair import mended
from rl_conductor.plan_text.shorten import shortened
from rl_conductor.workflow.workflow import PlanSpace, Step, Workflow

MOST_CHARS = 200_000
"""Longest text that is read at all."""
MAX_WRITTEN_STEPS = 40
"""Longest plan that is read so that it can be shortened; a longer one is a model that repeats itself."""


def parse(text: str, space: PlanSpace, *, form: Form = "lists", repair: bool, shorten: bool = True) -> Plan:
    """The plan that `text` writes, if `space` allows it.

    Args:
        text: what the Conductor wrote; its reasoning may stand before the plan.
        space: what may be planned.
        form: the form that was asked for; with `repair` any form is recognised.
        repair: put right what is misspelled and say so in `Plan.repairs`, rather than take the exact form only.
        shorten: with `repair`, whether a plan with too many steps is shortened and a missing access list completed;
            otherwise such a plan is an error, for whoever can ask the model again.

    Raises:
        WorkflowParseError: the text is not in the plan language.
        WorkflowValidationError: it is, but the space does not allow the plan.
    """
    try:
        if len(text) > MOST_CHARS:
            raise WorkflowParseError(f"a text of {len(text)} characters; at most {MOST_CHARS} are read")
        try:
            return _exact(text, space, form)
        except WorkflowError:
            if not repair:
                raise
        return _repaired(text, space, form, shorten=shorten)
    except WorkflowError as error:
        error.text = text
        raise


def completed_steps(text: str, space: PlanSpace) -> tuple[Step, ...]:
    """The steps of an unfinished plan in `lines` that are complete and allowed, so that they can start already.

    A step is complete at the end of its line; the first line that is not exactly an allowed step ends the reading.
    """
    steps: tuple[Step, ...] = ()
    for line in _split_lines(text)[1][:-1][: space.max_steps]:
        try:
            workflow = _workflow((*steps, _step(_written(_json(line)), len(steps), space)))
        except WorkflowError:
            break
        if render(workflow, space, "lines").split("\n")[-1] != line or space.step_violations(workflow):
            break
        steps = workflow.steps
    return steps


def _exact(text: str, space: PlanSpace, form: Form) -> Plan:
    reasoning, plan, written = READERS[form](text)
    steps = tuple(_step(one, index, space) for index, one in enumerate(written))
    workflow = _workflow(steps) if steps else None
    spelled = render(workflow, space, form, reasoning=reasoning if form == "object" else "")
    if plan != (_sorted(json.loads(spelled)) if form == "object" else spelled):
        raise WorkflowParseError(f"the plan is not spelled exactly; write {spelled!r}")
    return _allowed(workflow, space, reasoning=reasoning, form=form)


def _repaired(text: str, space: PlanSpace, form: Form, *, shorten: bool) -> Plan:
    found = salvaged(text, form, complete=shorten)
    if found.form != form:
        with suppress(WorkflowError):
            return _exact(text, space, found.form).model_copy(update={"repairs": tuple(found.repairs)})
    if (written := len(found.steps)) > max(MAX_WRITTEN_STEPS, space.max_steps):
        raise WorkflowValidationError(space.wrong_count(written))
    steps, repairs = mended(found.steps, space)
    workflow = _workflow(steps) if steps else None
    if shorten and workflow is not None and (shorter := shortened(workflow, space)) is not None:
        workflow, changes = shorter
        repairs += changes
    said = dict.fromkeys((*found.repairs, *repairs))
    return _allowed(
        workflow,
        space,
        reasoning=found.reasoning,
        form=found.form,
        repairs=tuple(said) or ("the plan was not spelled exactly",),
    )


def _allowed(
    workflow: Workflow | None, space: PlanSpace, *, reasoning: str, form: Form, repairs: tuple[str, ...] = ()
) -> Plan:
    if workflow is not None:
        space.check(workflow)
    elif not space.may_accept:
        raise WorkflowValidationError("it has no step, and there is no earlier answer to accept")
    return Plan(workflow=workflow, reasoning=reasoning, form=form, repairs=repairs)


def _workflow(steps: tuple[Step, ...]) -> Workflow:
    try:
        return Workflow(steps=steps)
    except ValidationError as invalid:
        raise WorkflowValidationError(*(problem.message for problem in problems(invalid))) from invalid


# ------------------------------------------------------------------------------------- exactly, by form


def _read_lists(text: str) -> tuple[str, str, list[WrittenStep]]:
    lines = _encodable(text).split("\n")
    if len(lines) < 3 or not all(map(str.startswith, lines[-3:], (f"{label} = " for label in LABELS))):
        raise WorkflowParseError(f"the last three lines must be {', '.join(f'`{label} = [...]`' for label in LABELS)}")
    columns = [_json(line.partition(" = ")[2]) for line in lines[-3:]]
    if not all(isinstance(column, list) for column in columns) or len({len(column) for column in columns}) > 1:
        raise WorkflowParseError(f"{', '.join(LABELS)} must be three lists of one length")
    workers, subtasks, access = columns
    return "\n".join(lines[:-3]), "\n".join(lines[-3:]), list(map(WrittenStep, subtasks, workers, access))


def _read_lines(text: str) -> tuple[str, str, list[WrittenStep]]:
    reasoning, lines = _split_lines(_encodable(text))
    if not lines:
        raise WorkflowParseError("no step was written: write a JSON object a line for each")
    return reasoning, "\n".join(lines), [] if lines == [ACCEPT] else [_written(_json(line)) for line in lines]


def _read_object(text: str) -> tuple[str, str, list[WrittenStep]]:
    data = _json(_encodable(text))
    if not isinstance(data, dict) or not isinstance(data.get("steps"), list):
        raise WorkflowParseError('the plan must be a JSON object: {"reasoning": "...", "steps": [...]}')
    return str(data.get("reasoning")), _sorted(data), [_written(step) for step in data["steps"]]


READERS = {"lists": _read_lists, "lines": _read_lines, "object": _read_object}
"""For each form: the reasoning, the plan as spelled, and its steps as written."""


def _split_lines(text: str) -> tuple[str, list[str]]:
    """What stands before the first line that opens an object, and the lines from there on."""
    lines = text.split("\n")
    start = next((number for number, line in enumerate(lines) if line.startswith("{")), len(lines))
    return "\n".join(lines[:start]), lines[start:]


def _written(data: Any) -> WrittenStep:
    if not isinstance(data, dict) or data.keys() != {"subtask", "worker", "access"}:
        raise WorkflowParseError('a step must be written {"subtask": "...", "worker": 0, "access": []}')
    return WrittenStep(**data)


def _step(written: WrittenStep, index: int, space: PlanSpace) -> Step:
    if not isinstance(written.subtask, str) or type(written.worker) is not int or not isinstance(written.access, list):
        raise WorkflowParseError(f"step {index + 1} must have a text, a number and a list, not {tuple(written)!r}")
    worker = space.worker(written.worker, where=f"step {index + 1}")
    if space.access == "binary":
        whole = ALL in written.access
        access, recall = frozenset(range(index) if whole else ()), whole and space.recalled is not None
    else:
        access, recall = frozenset(i for i in written.access if type(i) is int), BEFORE in written.access
    return Step(subtask=_encodable(written.subtask), worker=worker, access=access, recall=recall)


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as lone:
        raise WorkflowParseError(f"character {lone.start} is half of a surrogate pair") from lone
    return text


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as bad:
        raise WorkflowParseError(f"not JSON: {bad}") from bad


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError(f"a name appears twice among {', '.join(name for name, _ in pairs)}")
    return found


def _sorted(data: Any) -> str:
    """`data` as JSON that does not depend on the order of names; unlike `==` it tells `1` from `true`."""
    return json.dumps(data, sort_keys=True)
