"""Parses plan text into a `Plan`, strictly or with repairs. Pure.

Strict parsing accepts only the output of `render`; just the JSON of `object` may have any whitespace and order of keys,
since vendors differ. In both cases `PlanSpace.check` decides: a forbidden plan is never repaired into an allowed one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from rl_conductor._internal.validation import field_errors
from rl_conductor.errors import WorkflowError, WorkflowParseError, WorkflowValidationError
from rl_conductor.plan_text.extract import THOUGHT, extract_plan
from rl_conductor.plan_text.forms import ACCEPT, ALL, BEFORE, LABELS, Form, Plan, RawStep, dumps, render
from rl_conductor.plan_text.repair import repair_steps
from rl_conductor.plan_text.shorten import shorten_plan
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.workflow import Step, Workflow

ROW_EXAMPLE = '[0, "...", []]'
OBJECT_EXAMPLE = '{"subtask": "...", "worker": 0, "access": []}'
MAX_CHARS = 200_000
"""Maximum length of the text."""
MAX_PARSED_STEPS = 40
"""Maximum steps of a plan that is shortened; longer ones come from models that repeat themselves."""


def parse(text: str, space: PlanSpace, *, form: Form = "lists", repair: bool, shorten: bool = True) -> Plan:
    """Parses `text` and checks the plan against `space`.

    Args:
        text: the Conductor's reply; reasoning may precede the plan.
        space: the allowed plans.
        form: the requested form; with `repair` any form is recognised, and `Plan.form` says which it was.
        repair: repair mistakes and list them in `Plan.repairs`, instead of accepting the exact form only.
        shorten: with `repair`, whether a plan with too many steps is shortened and a missing access list completed;
            otherwise such a plan is an error, for callers that can retry.

    Raises:
        WorkflowParseError: the text is not in the plan language.
        WorkflowValidationError: the plan was parsed, but `space` does not allow it.
    """
    try:
        if len(text) > MAX_CHARS:
            raise WorkflowParseError(f"a text of {len(text)} characters; at most {MAX_CHARS} are read")
        try:
            return _exact(text, space, form)
        except WorkflowError:
            if not repair:
                raise
        return _repaired(text, space, form, shorten=shorten)
    except WorkflowError as error:
        error.text = text
        raise


def completed_steps(text: str, space: PlanSpace, form: Form, *, thinks_first: bool = False) -> tuple[Step, ...]:
    """Parses the complete and allowed steps of an unfinished plan, so that they can start early.

    A step is complete when the next one begins, so the last step is never among them. Parsing stops at the first step
    that is not exactly an allowed one. A plan in `lists` has no complete step before its end. Steps in a thinking block
    are drafts, which are passed over; with `thinks_first` the text begins inside of such a block.
    """
    steps: tuple[Step, ...] = ()
    try:
        for raw in _started_steps(text, form, thinks_first=thinks_first)[:-1][: space.max_steps]:
            raw_step = _row_step(raw) if form == "rows" else _object_step(raw)
            workflow = _workflow((*steps, _step(raw_step, len(steps), space)))
            if space.step_violations(workflow):
                break
            steps = workflow.steps
    except WorkflowError:
        pass
    return steps


def _started_steps(text: str, form: Form, *, thinks_first: bool) -> list[Any]:
    """Parses the steps of an unfinished plan, of which the last may be incomplete."""
    if form == "lists":
        return []
    if form == "object":
        try:
            data = from_json(_encodable(text), allow_partial=True)
        except ValueError:
            return []
        steps = data.get("steps") if isinstance(data, dict) else None
        return steps if isinstance(steps, list) else []
    lines = _split_rows(_after_thinking(text, thinks_first=thinks_first))[1]
    steps = []
    for line in lines:
        step = None
        with suppress(WorkflowError):
            step = _json(line)
        steps.append(step)
        if dumps(step) != line:
            break
    return steps if lines and lines[-1].startswith("[") else steps[: len(lines) - 1]


def _after_thinking(text: str, *, thinks_first: bool) -> str:
    """Returns the text after the last thinking block; empty inside of one. Tags in a row are its text."""
    end = None if thinks_first else 0
    for tag in THOUGHT.finditer(text):
        if not text.startswith("[", text.rfind("\n", 0, tag.start()) + 1):
            end = tag.end() if tag[0].startswith("</") else None
    return "" if end is None else text[end:]


def _exact(text: str, space: PlanSpace, form: Form) -> Plan:
    reasoning, plan, raw_steps = READERS[form](text)
    _check_count(len(raw_steps), space)
    steps = tuple([_step(raw, index, space) for index, raw in enumerate(raw_steps)])
    workflow = _workflow(steps) if steps else None
    canonical = render(workflow, space, form, reasoning=reasoning if form == "object" else "")
    if plan != (_sorted(json.loads(canonical)) if form == "object" else canonical):
        raise WorkflowParseError(f"the plan is not spelled exactly; write {canonical!r}")
    return _allowed(workflow, space, reasoning=reasoning, form=form)


def _repaired(text: str, space: PlanSpace, form: Form, *, shorten: bool) -> Plan:
    for other in [each for each in READERS if each != form]:
        with suppress(WorkflowError):
            plan = _exact(text, space, other)
            if plan.workflow is not None:
                return plan
    extracted = extract_plan(text, form, complete=shorten)
    if extracted.form != form:
        with suppress(WorkflowError):
            return _exact(text, space, extracted.form)
    _check_count(len(extracted.steps), space)
    steps, repairs = repair_steps(extracted.steps, space)
    workflow = _workflow(steps) if steps else None
    if shorten and workflow is not None and (shorter := shorten_plan(workflow, space)) is not None:
        workflow, changes = shorter
        repairs += changes
    all_repairs = dict.fromkeys((*extracted.repairs, *repairs))
    return _allowed(
        workflow,
        space,
        reasoning=extracted.reasoning,
        form=extracted.form,
        repairs=tuple(all_repairs) or ("the plan was not spelled exactly",),
    )


def _check_count(count: int, space: PlanSpace) -> None:
    """Raises an error for a plan of far too many steps, which takes long to check."""
    if count > max(MAX_PARSED_STEPS, space.max_steps):
        raise WorkflowValidationError(space.wrong_count(count))


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
        raise WorkflowValidationError(*(field.message for field in field_errors(invalid))) from invalid


# ------------------------------------------------------------------------------------- exactly, by form


def _read_lists(text: str) -> tuple[str, str, list[RawStep]]:
    lines = _encodable(text).split("\n")
    if [line.partition(" = ")[0] for line in lines[-3:] if " = " in line] != list(LABELS):
        raise WorkflowParseError(f"the last three lines must be {', '.join(f'`{label} = [...]`' for label in LABELS)}")
    workers, subtasks, access = columns = [_json(line.partition(" = ")[2]) for line in lines[-3:]]
    if [type(column) for column in columns] != [list] * 3 or len(set(map(len, columns))) > 1:
        raise WorkflowParseError(f"{', '.join(LABELS)} must be three lists of one length")
    return "\n".join(lines[:-3]), "\n".join(lines[-3:]), list(map(RawStep, subtasks, workers, access))


def _read_rows(text: str) -> tuple[str, str, list[RawStep]]:
    reasoning, lines = _split_rows(_encodable(text))
    if not lines:
        raise WorkflowParseError(f"no step was written: write one line for each, as in {ROW_EXAMPLE}")
    steps = [] if lines == [ACCEPT] else [_row_step(_json(line)) for line in lines]
    return reasoning, "\n".join(lines), steps


def _read_object(text: str) -> tuple[str, str, list[RawStep]]:
    data = _json(_encodable(text))
    if not isinstance(data, dict) or not isinstance(data.get("steps"), list):
        raise WorkflowParseError('the plan must be a JSON object: {"reasoning": "...", "steps": [...]}')
    return str(data.get("reasoning")), _sorted(data), [_object_step(step) for step in data["steps"]]


READERS: dict[Form, Callable[[str], tuple[str, str, list[RawStep]]]] = {
    "lists": _read_lists,
    "rows": _read_rows,
    "object": _read_object,
}
"""For each form, a function that splits text into reasoning, plan text and raw steps."""


def _split_rows(text: str) -> tuple[str, list[str]]:
    """Splits `text` at the first line that opens a row."""
    lines = text.split("\n")
    start = next((number for number, line in enumerate(lines) if line.startswith("[")), len(lines))
    return "\n".join(lines[:start]), lines[start:]


def _row_step(data: Any) -> RawStep:
    if not isinstance(data, list) or len(data) not in (3, 4):
        raise WorkflowParseError(f"a step must be written {ROW_EXAMPLE}")
    worker, subtask, *reads = data
    return RawStep(subtask, worker, *reads)


def _object_step(data: Any) -> RawStep:
    if not isinstance(data, dict) or data.keys() - {"inputs"} != {"subtask", "worker", "access"}:
        raise WorkflowParseError(f"a step must be written {OBJECT_EXAMPLE}")
    return RawStep(**data)


def _step(raw: RawStep, index: int, space: PlanSpace) -> Step:
    if not isinstance(raw.subtask, str) or type(raw.worker) is not int or not isinstance(raw.access, list):
        raise WorkflowParseError(f"step {index + 1} must have a text, a number and a list, not {tuple(raw)!r}")
    worker = space.worker(raw.worker, where=f"step {index + 1}")
    if space.access == "binary":
        reads_all = ALL in raw.access
        access = frozenset(range(index) if reads_all else ())
        recall = reads_all and space.recallable is not None
    else:
        access, recall = frozenset(i for i in raw.access if type(i) is int), BEFORE in raw.access
    inputs = _inputs(raw.inputs, space, where=f"step {index + 1}")
    return Step(subtask=_encodable(raw.subtask), worker=worker, access=access, recall=recall, inputs=inputs)


def _inputs(raw: Any, space: PlanSpace, *, where: str) -> frozenset[str] | None:
    """Returns the inputs that a step sees; `None` for all, and in forms and spaces without inputs."""
    if raw is None or raw == [ALL]:
        if raw is not None and not space.inputs:
            raise WorkflowParseError(f"{where}: there are no inputs to choose from; leave out inputs")
        return None
    if not isinstance(raw, list) or not all(name in space.inputs for name in raw):
        names = ", ".join(map(repr, space.inputs)) or "none"
        raise WorkflowParseError(f'{where}: inputs must be ["all"] or a list of these names: {names}; not {raw!r}')
    return space.shared_inputs.union(raw)


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
    if len(result := dict(pairs)) < len(pairs):
        raise ValueError(f"a name appears twice among {', '.join(name for name, _ in pairs)}")
    return result


def _sorted(data: Any) -> str:
    """Serialises `data` with sorted keys, for comparison; unlike `==` this distinguishes `1` from `true`."""
    return json.dumps(data, sort_keys=True)
