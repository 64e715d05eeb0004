from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from time import process_time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.strategies import attempts, plannable, spaces, workflows
from rl_conductor.errors import ConfigError, WorkflowError, WorkflowParseError, WorkflowValidationError
from rl_conductor.plan_text.forms import Form, Plan, render
from rl_conductor.plan_text.parser import MAX_CHARS, MAX_PARSED_STEPS, completed_steps, parse
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.workflow import Step, Workflow

ALL_FORMS: list[Form] = ["lists", "rows", "object"]
FORMS = st.sampled_from(ALL_FORMS)
CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.txt"))
BAR = f"\n{'=' * 20}\n"
quick = partial(settings, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])

TEAM = PlanSpace(
    roster=("coder", "writer", "critic", "intern"),
    allowed=frozenset({"coder", "writer", "critic"}),
    forbidden_flows=frozenset({("writer", "critic")}),
)
LATER = TEAM.model_copy(update={"recallable": frozenset({"coder"}), "may_accept": True})
TWO = Workflow(
    steps=(
        Step(subtask="Draft.", worker="coder"),
        Step(subtask='Say "é".\n', worker="critic", access=frozenset({0})),
    )
)
LISTS = 'model_id = [0, 2]\nsubtasks = ["Draft.", "Say \\"é\\".\\n"]\naccess_list = [[], ["all"]]'
ROWS = '[0, "Draft.", []]\n[2, "Say \\"é\\".\\n", ["all"]]'
OBJECT = (
    '{"reasoning":"","steps":[{"subtask":"Draft.","worker":0,"access":[]},'
    '{"subtask":"Say \\"é\\".\\n","worker":2,"access":["all"]}]}'
)


# ------------------------------------------------------------------------------------------------ corpus


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_malformed_output_is_read_as_expected(path: Path) -> None:
    """A corpus file: form, access and round; what a model wrote; the plan (and the repairs) or the error."""
    head, text, *expected = path.read_bytes().decode().removesuffix("\n").split(BAR)
    form, access, turn = head.split()
    space = (LATER if turn == "later-round" else TEAM).model_copy(update={"access": access})
    assert form in ALL_FORMS
    if len(expected) == 1:
        with pytest.raises(WorkflowError) as caught:
            parse(text, space, form=form, repair=True)
        assert [f"{caught.type.__name__}: {caught.value}"] == expected
        assert caught.value.text == text
    else:
        plan = parse(text, space, form=form, repair=True)
        assert [render(plan.workflow, space), "\n".join(plan.repairs)] == expected


def test_the_corpus_is_all_there() -> None:
    assert len(CORPUS) >= 90


# ------------------------------------------------------------------------------------------- exact reading


@pytest.mark.parametrize(("form", "text"), [("lists", LISTS), ("rows", ROWS), ("object", OBJECT)])
def test_each_form_has_one_spelling(form: Form, text: str) -> None:
    assert render(TWO, TEAM, form) == text
    assert parse(text, TEAM, form=form, repair=False) == Plan(workflow=TWO, form=form)


@pytest.mark.parametrize("form", ALL_FORMS)
@pytest.mark.parametrize("reasoning", ["One line.", "Two\nlines, with model_id = [0].", " spaces \n"])
def test_reasoning_before_a_plan_is_free_and_kept(form: Form, reasoning: str) -> None:
    text = render(TWO, TEAM, form, reasoning=reasoning)
    assert parse(text, TEAM, form=form, repair=False).reasoning == reasoning


@pytest.mark.parametrize(
    ("form", "text"),
    [("lists", "model_id = []\nsubtasks = []\naccess_list = []"), ("rows", "[]")],
)
def test_an_empty_plan_accepts_the_earlier_answer(form: Form, text: str) -> None:
    assert render(None, LATER, form) == text
    assert parse(text, LATER, form=form, repair=False).workflow is None
    with pytest.raises(WorkflowValidationError, match="no earlier answer") as caught:
        parse(text, TEAM, form=form, repair=False)
    assert caught.value.violations


def test_in_a_later_round_all_covers_the_earlier_rounds() -> None:
    text = 'model_id = [0]\nsubtasks = ["Check."]\naccess_list = [["all"]]'
    plan = parse(text, LATER, repair=False)
    assert plan.workflow is not None
    assert plan.workflow.steps[0].recall
    assert render(plan.workflow, LATER) == text
    with pytest.raises(WorkflowParseError, match="exactly"):
        parse(text, TEAM, repair=False)


def test_positional_access_names_the_earlier_rounds_first() -> None:
    space = LATER.model_copy(update={"access": "positional"})
    text = 'model_id = [0, 1]\nsubtasks = ["a", "b"]\naccess_list = [[], ["before", 0]]'
    plan = parse(text, space, repair=False)
    assert plan.workflow is not None
    assert plan.workflow.steps[1] == Step(subtask="b", worker="writer", access=frozenset({0}), recall=True)
    with pytest.raises(WorkflowParseError):
        parse(text.replace('"before", 0', '0, "before"'), space, repair=False)
    with pytest.raises(WorkflowValidationError, match="no earlier round"):
        parse(text, TEAM.model_copy(update={"access": "positional"}), repair=False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        LISTS + "\n",
        LISTS.replace(", 2", ",2"),
        LISTS.replace("model_id =", "model_id:"),
        LISTS.replace("é", "\\u00e9"),
        LISTS.replace("[0, 2]", "[0, true]"),
        LISTS.replace("[0, 2]", "[0, 2.0]"),
        LISTS.replace("[0, 2]", "[0]"),
        LISTS.replace("[0, 2]", "{}"),
        LISTS.replace("[0, 2]", "[0, 2"),
        LISTS.replace('"Draft."', "7"),
        LISTS.replace("[[],", "[null,"),
        LISTS.replace("[[],", '[["all"],'),
        LISTS.replace('["all"]', "[0]"),
        LISTS.replace('["all"]', '["all", "all"]'),
        LISTS.replace("Draft.", " Draft."),
        LISTS.replace("Draft.", "\\ud800"),
        LISTS.replace("Draft.", "\ud800"),
        LISTS.replace("[[],", "[" + "[" * 100_000),
        LISTS.replace("[0,", "[" + "9" * 5_000 + ","),
        ROWS,
        OBJECT,
    ],
)
def test_the_lists_are_read_in_no_other_spelling(text: str) -> None:
    with pytest.raises(WorkflowParseError) as caught:
        parse(text, TEAM, repair=False)
    assert caught.value.text == text


@pytest.mark.parametrize(
    "text",
    [
        "No plan.",
        ROWS + "\n",
        ROWS.replace("]\n[", "]\n\n["),
        ROWS.replace("]\n[", "], ["),
        f"[{ROWS}]",
        ROWS.replace("[0,", "[false,"),
        ROWS.replace("[0, ", '["0", '),
        ROWS.replace(", []]", "]"),
        ROWS.replace(", []]", ", [], null]"),
        ROWS.replace(", []]", ", [], [], []]"),
        ROWS.replace(", []]", ",[]]"),
        ROWS + "\n[]",
        "[ ]",
        OBJECT,
        LISTS,
    ],
)
def test_the_rows_are_read_in_no_other_spelling(text: str) -> None:
    with pytest.raises(WorkflowParseError):
        parse(text, LATER, form="rows", repair=False)


@pytest.mark.parametrize(
    "text",
    [
        OBJECT + "x",
        OBJECT.replace('"reasoning":"",', ""),
        OBJECT.replace('"reasoning":""', '"reasoning":1'),
        OBJECT.replace('"reasoning":""', '"reasoning":"","more":""'),
        OBJECT.replace('"worker":0', '"worker":false'),
        OBJECT.replace('"worker":0', '"worker":NaN'),
        OBJECT.replace('"worker":0', '"worker":0,"worker":0'),
        '{"reasoning": "", "steps": {}}',
        "[]",
        LISTS,
    ],
)
def test_the_object_is_read_with_no_other_content(text: str) -> None:
    with pytest.raises(WorkflowParseError):
        parse(text, TEAM, form="object", repair=False)


def test_the_object_may_be_spaced_and_ordered_freely() -> None:
    text = json.dumps(json.loads(OBJECT), indent=2, sort_keys=True)
    assert parse(text, TEAM, form="object", repair=False).workflow == TWO


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize(
    ("changed", "violation"),
    [
        (("[0, 2]", "[3, 2]"), "worker 'intern' is not allowed"),
        (("[0, 2]", "[2, 1]"), "nothing from 'critic' may reach 'writer'"),
        (("[0, 2]", "[0, 4]"), "there is no worker 4; there are 0 to 3"),
        (("[0, 2]", "[0, -1]"), "there is no worker -1"),
        (("Draft.", ""), "step 1 has an empty subtask"),
    ],
)
def test_what_the_space_forbids_is_never_repaired(changed: tuple[str, str], violation: str, repair: bool) -> None:
    text = LISTS.replace(*changed)
    with pytest.raises(WorkflowValidationError, match=violation) as caught:
        parse(text, TEAM, repair=repair)
    assert caught.value.text == text
    assert any(violation in found for found in caught.value.violations)


def test_a_forward_reference_is_refused_by_exact_reading() -> None:
    space = TEAM.model_copy(update={"access": "positional"})
    with pytest.raises(WorkflowValidationError, match="step 1 may read only"):
        parse('model_id = [0]\nsubtasks = ["a"]\naccess_list = [[0]]', space, repair=False)


def test_a_text_too_long_to_read_is_refused() -> None:
    with pytest.raises(WorkflowParseError, match="at most"):
        parse("x" * (MAX_CHARS + 1), TEAM, repair=True)


def test_positions_are_written_in_rising_order() -> None:
    space = TEAM.model_copy(update={"access": "positional", "max_steps": 10})
    nine = tuple(Step(subtask="a", worker="coder") for _ in range(9))
    last = Step(subtask="b", worker="coder", access=frozenset({8, 1}))
    assert render(Workflow(steps=(*nine, last)), space).endswith("[], [1, 8]]")


def test_rendering_refuses_what_it_cannot_spell() -> None:
    with pytest.raises(ConfigError, match="no worker 'nobody'"):
        render(Workflow(steps=(Step(subtask="a", worker="nobody"),)), TEAM)
    reads_one = Step(subtask="c", worker="coder", access=frozenset({1}))
    with pytest.raises(ConfigError, match="a binary space"):
        render(Workflow(steps=(*TWO.steps, reads_one)), TEAM)


# ----------------------------------------------------------------------------------------- repairing reading


@given(data=st.data(), space=spaces(), form=FORMS, reasoning=st.sampled_from(["", "Thinking."]))
@quick(max_examples=100)
def test_every_allowed_workflow_is_read_back_in_every_form_with_nothing_to_repair(
    data: st.DataObject, space: PlanSpace, form: Form, reasoning: str
) -> None:
    space = plannable(space, form)
    workflow = data.draw(workflows(space))
    text = render(workflow, space, form, reasoning=reasoning)
    exact = parse(text, space, form=form, repair=False)
    assert exact == Plan(workflow=workflow, reasoning=reasoning, form=form)
    assert parse(text, space, form=form, repair=True) == exact


@given(data=st.data(), space=spaces(), form=FORMS, asked=FORMS)
@quick(max_examples=100)
def test_an_exact_plan_in_another_form_is_read_as_it_is(
    data: st.DataObject, space: PlanSpace, form: Form, asked: Form
) -> None:
    space = plannable(plannable(space, form), asked)
    workflow = data.draw(workflows(space))
    plan = parse(render(workflow, space, form), space, form=asked, repair=True)
    assert (plan.workflow, plan.form) == (workflow, form)
    assert plan.repairs == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            f"model_id = {[0] * 6}\nsubtasks = {['a'] * 6}\naccess_list = {[[]] * 6}",
            "the plan may not run: 6 steps, but 1 to 5 are allowed",
        ),
        ('model_id = [0, 1]\nsubtasks = ["a", "b"]\naccess_list = [[]]', "the lists differ in length"),
    ],
)
def test_who_can_ask_again_is_told_what_else_would_be_invented(text: str, problem: str) -> None:
    with pytest.raises(WorkflowError, match=problem):
        parse(text, TEAM, repair=True, shorten=False)
    assert parse(text, TEAM, repair=True).repairs


def test_a_plan_that_repeats_itself_is_not_shortened() -> None:
    count = MAX_PARSED_STEPS + 1
    with pytest.raises(WorkflowValidationError, match="41 steps, but 1 to 5"):
        parse(f"model_id = {[0] * count}\nsubtasks = {['a'] * count}\naccess_list = {[[]] * count}", TEAM, repair=True)


PIECES = st.sampled_from(
    [
        *"[](){}\"'`,:=#\\\n\t 01“’«🙂\ud800\x00\u2028", "model_id", "subtasks = [", "access_list: ", '"all"', "//",
        "None", "\nmodel_id = [0]", '\nsubtasks = ["a"]', "\naccess_list = [[]]", '{"subtask": "a", ',
        '"worker": 0, "access": []}', "<think>", "</think>", "```", "- x\n",
        '[0, "a", []]', "\n[1, ", '"""', "True", "Model 1", '{"steps": [', "]}", '{"accept": true}',
    ]
)  # fmt: skip


@given(
    pieces=st.lists(PIECES | st.text(max_size=5), max_size=40),
    plain=st.booleans(),
    data=st.data(),
    space=spaces(),
    form=FORMS,
)
@quick(max_examples=300)
def test_any_text_gives_an_allowed_plan_or_a_workflow_error(
    pieces: list[str], plain: bool, data: st.DataObject, space: PlanSpace, form: Form
) -> None:
    text = "".join(pieces)
    if not plain:
        whole = render(data.draw(attempts(space)), space, data.draw(FORMS))
        cut = data.draw(st.integers(0, len(whole)))
        text = whole[:cut] + text + whole[cut + data.draw(st.integers(0, 3)) :]
    try:
        plan = parse(text, space, form=form, repair=True)
    except WorkflowError:
        return
    assert space.may_accept if plan.workflow is None else not space.violations(plan.workflow)


@pytest.mark.timed
@pytest.mark.parametrize(
    "unit",
    [
        "[", "{", '"', "'", "(", "*", "`", " ", "\n", "\\", "#", "model_id = [", "model_id:\n", "subtasks:\n- a\n",
        '{"subtask": "', '{"subtask": "a\n', '"a\n', '["a ', '"ab\n',
        "<think>", "</think>", "```", '{"steps": [', '"""', "“a\n", "[0, ", "\n[0, 'a", '\n[0, "a", []]',
        "0, ", "model_id = [0]\n", "\nsubtasks = ['a", '{"accept": ', "// ", "-> *model_id*: ", "a, ", '["a", ',
    ],
)  # fmt: skip
def test_no_text_takes_long_to_give_up_on(unit: str) -> None:
    text = "model_id = [" + unit * (MAX_CHARS // len(unit) - 10)
    start = process_time()
    with pytest.raises(WorkflowError):
        parse(text, TEAM, repair=True)
    assert process_time() - start < 5


# -------------------------------------------------------------------------------------------- early dispatch


def test_a_row_without_an_access_list_reads_every_earlier_step() -> None:
    text = '[0, "Draft."]\n[1, "Check."]'
    plan = parse(text, TEAM, form="rows", repair=True)
    assert plan.workflow is not None
    assert [sorted(step.access) for step in plan.workflow.steps] == [[], [0]]
    assert "a step without an access list was taken to read every earlier step" in plan.repairs
    with pytest.raises(WorkflowParseError, match="a step has no access list; write"):
        parse(text, TEAM, form="rows", repair=True, shorten=False)


def test_an_array_that_is_no_step_is_passed_over() -> None:
    plan = parse('[0, "Draft.", 3]\n\nRather:\n[1, "Draft.", []]', TEAM, form="rows", repair=True)
    assert plan.workflow is not None
    assert [step.worker for step in plan.workflow.steps] == [TEAM.roster[1]]


def test_a_row_is_complete_when_the_next_line_begins_one() -> None:
    text = f"First a [short] draft.\n{ROWS}\n"
    sizes = [len(completed_steps(text[:end], TEAM, "rows")) for end in range(len(text) + 1)]
    second = text.index("]\n[") + 3
    assert sizes == [0] * second + [1] * (len(text) - second + 1)
    assert completed_steps(text + "[", TEAM, "rows") == TWO.steps


@pytest.mark.parametrize(
    "line", ['[1, "b",[]]', '[3, "b", []]', '[9, "b", []]', '[1, " ", []]', '[1, "b"', "[]", "[[]]", "Then:", ""]
)
def test_a_line_that_is_no_allowed_row_ends_the_reading(line: str) -> None:
    first, second = ROWS.split("\n")
    assert completed_steps(f"{first}\n{line}\n{second}\n[", TEAM, "rows") == TWO.steps[:1]


def test_a_step_of_an_object_is_complete_when_the_next_one_begins() -> None:
    text = render(TWO, TEAM, "object", reasoning="First {a draft}.")
    sizes = [len(completed_steps(text[:end], TEAM, "object")) for end in range(len(text) + 1)]
    second = text.index('{"subtask"', text.index('{"subtask"') + 1) + 1
    assert sizes == [0] * second + [1] * (len(text) - second + 1)
    assert completed_steps(text, TEAM, "object") == TWO.steps[:1]


@pytest.mark.parametrize("text", ["", "[]", "[1, 2", "null", '{"steps": 1', '{"steps": [1, {', "x", '{"a": "\ud800'])
def test_what_is_no_object_of_steps_has_no_complete_step(text: str) -> None:
    assert completed_steps(text, TEAM, "object") == ()


def test_no_step_of_lists_is_complete_before_the_end() -> None:
    assert completed_steps(render(TWO, TEAM, "lists"), TEAM, "lists") == ()


@pytest.mark.parametrize("tag", ["think", "thinking", "thought", "reasoning"])
def test_drafts_in_a_thinking_block_are_not_started(tag: str) -> None:
    draft = f"{ROWS}\n{ROWS}\nNo.\n"
    thinking = f"<{tag}>\n{draft}</{tag}>\n"
    for end in range(len(thinking)):
        assert completed_steps(thinking[:end], TEAM, "rows") == ()
    assert completed_steps(f"{thinking}{ROWS}\n[", TEAM, "rows") == TWO.steps
    assert completed_steps(f"{draft}[", TEAM, "rows", thinks_first=True) == ()
    assert completed_steps(f"{draft}</{tag}>\n{ROWS}\n[", TEAM, "rows", thinks_first=True) == TWO.steps


def test_a_thinking_tag_in_a_subtask_is_text() -> None:
    text = ROWS.replace(', "', ', "Explain </think> and <think>: ')
    assert [step.worker for step in completed_steps(f"{text}\n[", TEAM, "rows")] == [s.worker for s in TWO.steps]


def test_no_step_past_the_last_is_started() -> None:
    space = TEAM.model_copy(update={"max_steps": 1})
    assert completed_steps(f"{ROWS}\n[", space, "rows") == TWO.steps[:1]


@given(data=st.data(), space=spaces())
@quick(max_examples=100)
def test_what_is_started_early_is_what_the_whole_plan_says(data: st.DataObject, space: PlanSpace) -> None:
    form: Form = data.draw(st.sampled_from(("rows", "object")))
    workflow = data.draw(workflows(space))
    text = render(workflow, space, form)
    started = completed_steps(text[: data.draw(st.integers(0, len(text)))], space, form)
    assert started == workflow.steps[: len(started)]
    assert completed_steps(text, space, form) == workflow.steps[:-1]


# ------------------------------------------------------------------------------------ the user's inputs

PARTS = TEAM.model_copy(update={"inputs": ("turn 1", "image 1", "image 2"), "shared_inputs": frozenset({"turn 2"})})


def looking(inputs: object) -> str:
    return json.dumps([0, "Look.", [], inputs])


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (["all"], None),
        ([], {"turn 2"}),
        (["image 2"], {"image 2", "turn 2"}),
        (["turn 1", "image 1", "image 2"], {"turn 1", "image 1", "image 2", "turn 2"}),
    ],
)
@pytest.mark.parametrize("form", ["rows", "object"])
def test_a_step_names_the_inputs_that_it_sees(form: Form, inputs: list[str], expected: set[str] | None) -> None:
    step = {"subtask": "Look.", "worker": 0, "access": [], "inputs": inputs}
    text = looking(inputs) if form == "rows" else json.dumps({"reasoning": "", "steps": [step]})
    workflow = parse(text, PARTS, form=form, repair=False).workflow
    assert workflow is not None
    assert workflow.steps[0].inputs == expected
    assert json.loads(render(workflow, PARTS, form)) == json.loads(text)


@pytest.mark.parametrize("inputs", [["image 3"], ["turn 2"], ["image 2", "image 1"], "all", [["all"]], [1], None])
def test_inputs_are_read_exactly_only_by_their_names_and_in_order(inputs: object) -> None:
    with pytest.raises(WorkflowParseError):
        parse(looking(inputs), PARTS, form="rows", repair=False)


def test_inputs_have_no_place_in_other_spaces_and_in_lists() -> None:
    with pytest.raises(WorkflowParseError, match="there are no inputs to choose from"):
        parse(looking(["all"]), TEAM, form="rows", repair=False)
    with pytest.raises(WorkflowParseError, match="a list of these names: none"):
        parse(looking(["image 1"]), TEAM, form="rows", repair=False)
    plan = parse(looking(["image 1"]), TEAM, form="rows", repair=True)
    assert plan.workflow == Workflow(steps=(Step(subtask="Look.", worker="coder"),))
    assert plan.repairs == ("step 1: inputs ['image 1'] were read as ['all']",)
    assert plan.workflow is not None
    seeing = Workflow(steps=(plan.workflow.steps[0].model_copy(update={"inputs": frozenset({"image 1"})}),))
    assert "image 1" not in render(seeing, PARTS, "lists")


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ("image 1", {"image 1", "turn 2"}),
        (["Image 2", "image 1"], {"image 1", "image 2", "turn 2"}),
        ("all", None),
        (["image 1", "the chart"], None),
        (None, None),
        ({"image": 1}, None),
    ],
)
def test_inputs_that_are_not_known_become_all_of_them(inputs: object, expected: set[str] | None) -> None:
    plan = parse(looking(inputs), PARTS, form="rows", repair=True)
    assert plan.workflow is not None
    assert plan.workflow.steps[0].inputs == expected
    (repair,) = plan.repairs
    assert repair.startswith(f"step 1: inputs {inputs!r} were read as ")


def test_a_step_without_inputs_sees_all_of_them() -> None:
    text = '[0, "Look.", []]'
    with pytest.raises(WorkflowParseError, match="not spelled exactly"):
        parse(text, PARTS, form="rows", repair=False)
    plan = parse(text, PARTS, form="rows", repair=True)
    assert plan.workflow is not None
    assert plan.workflow.steps[0].inputs is None
    assert plan.repairs == ("step 1: inputs None were read as ['all']",)
