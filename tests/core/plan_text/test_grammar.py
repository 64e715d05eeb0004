from __future__ import annotations

import json
import random
from functools import lru_cache, partial
from time import process_time
from typing import Any

import llguidance
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from llguidance.gbnf_to_lark import any_to_lark

from core.gbnf_reader import Gbnf
from core.strategies import attempts, plannable, spaces, workflows
from rl_conductor.errors import ConfigError, WorkflowError
from rl_conductor.plan_text import gbnf, plan_states
from rl_conductor.plan_text.forms import Form, render
from rl_conductor.plan_text.grammar import GrammarTooLarge, constraint, relaxed_constraint
from rl_conductor.plan_text.parser import parse
from rl_conductor.types import Grammar, JsonFormat
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.workflow import Step, Workflow

TEXT_FORMS: list[Form] = ["lists", "rows"]
FORMS = st.sampled_from(TEXT_FORMS)
NAMES = tuple("abcdefg")
quick = partial(settings, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])


def written(space: PlanSpace, form: Form, *, reasoning_chars: int = 0) -> str:
    made = constraint(space, form, reasoning_chars=reasoning_chars)
    assert isinstance(made, Grammar)
    return made.gbnf


@lru_cache(maxsize=64)
def language(space: PlanSpace, form: Form, reasoning_chars: int = 0) -> Gbnf | None:
    """The grammar of `space`; `None` when it allows no plan."""
    try:
        return Gbnf.read(written(space, form, reasoning_chars=reasoning_chars))
    except ConfigError:
        return None


def admits(space: PlanSpace, form: Form, text: str) -> bool:
    found = language(space, form)
    return found is not None and found.admits(text)


def reads_exactly(text: str, space: PlanSpace, form: Form) -> bool:
    """Whether exact reading accepts `text` as a plan without reasoning."""
    try:
        plan = parse(text, space, form=form, repair=False)
    except WorkflowError:
        return False
    return text == render(plan.workflow, space, form)


# ------------------------------------------------------------------------------- the grammar and the parser


@given(space=spaces(), form=FORMS, seed=st.integers(0, 2**32), reasoning_chars=st.sampled_from([0, 1, 20]))
@quick(max_examples=150)
def test_what_the_grammar_admits_is_read_exactly_and_allowed(
    space: PlanSpace, form: Form, seed: int, reasoning_chars: int
) -> None:
    space = plannable(space, form)
    admitted = language(space, form, reasoning_chars)
    assume(admitted is not None)
    assert admitted is not None
    text = admitted.draw(random.Random(seed))
    plan = parse(text, space, form=form, repair=False)
    assert plan.workflow is None or not space.violations(plan.workflow)
    assert text.endswith(render(plan.workflow, space, form))
    assert len(plan.reasoning) <= reasoning_chars


@given(data=st.data(), space=spaces(), form=FORMS)
@quick(max_examples=200)
def test_a_workflow_can_be_written_exactly_when_the_space_allows_it(
    data: st.DataObject, space: PlanSpace, form: Form
) -> None:
    space = plannable(space, form)
    workflow = data.draw(attempts(space))
    assert admits(space, form, render(workflow, space, form)) == (not space.violations(workflow))


@given(data=st.data(), space=spaces(), form=FORMS)
@quick(max_examples=150)
def test_every_allowed_workflow_is_read_back_as_it_was(data: st.DataObject, space: PlanSpace, form: Form) -> None:
    space = plannable(space, form)
    workflow = data.draw(workflows(space))
    text = render(workflow, space, form)
    assert admits(space, form, text)
    assert parse(text, space, form=form, repair=False).workflow == workflow


@given(data=st.data(), space=spaces(), form=FORMS)
@quick(max_examples=200)
def test_a_changed_text_is_read_exactly_when_the_grammar_admits_it(
    data: st.DataObject, space: PlanSpace, form: Form
) -> None:
    space = plannable(space, form)
    text = render(data.draw(attempts(space)), space, form)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        gone = data.draw(st.sampled_from([0, 0, 1, 1, 2, 6]))
        new = data.draw(
            st.sampled_from(["", " ", "\n", '"', "\\", "0", "1", "[", "]", ", ", '"all"', '"before"', "x", "\t"])
        )
        text = text[:at] + new + text[at + gone :]
    assert reads_exactly(text, space, form) == admits(space, form, text)


@given(space=spaces(), form=FORMS)
@quick(max_examples=100)
def test_an_empty_plan_can_be_written_only_where_it_is_allowed(space: PlanSpace, form: Form) -> None:
    space = plannable(space, form)
    text = render(None, space, form)
    assert admits(space, form, text) == space.may_accept == reads_exactly(text, space, form)


# ------------------------------------------------------------------------------------ real engines read it


@lru_cache
def bytes_tokenizer() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer("byte")


def llguidance_admits(gbnf_text: str, text: str) -> bool:
    matcher = llguidance.LLMatcher(bytes_tokenizer(), any_to_lark(gbnf_text))
    assert not matcher.is_error(), matcher.get_error()
    tokens = bytes_tokenizer().tokenize_str(text)
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


@given(data=st.data(), space=spaces(), form=FORMS)
@quick(max_examples=60)
def test_llguidance_agrees_with_the_check(data: st.DataObject, space: PlanSpace, form: Form) -> None:
    space = plannable(space, form)
    assume(language(space, form) is not None)
    workflow = data.draw(attempts(space))
    text = render(workflow, space, form)
    assert llguidance_admits(written(space, form), text) == (not space.violations(workflow))


@pytest.mark.parametrize("form", TEXT_FORMS)
@pytest.mark.parametrize("size", [1, 400])
def test_an_escape_counts_as_one_character(form: Form, size: int) -> None:
    space = PlanSpace(roster=NAMES, allowed=frozenset(NAMES), subtask_chars=size)
    fits, too_long = (Workflow(steps=(Step(subtask='"' * n, worker="a"),)) for n in (size, size + 1))
    assert llguidance_admits(written(space, form), render(fits, space, form))
    assert not llguidance_admits(written(space, form), render(too_long, space, form))


@pytest.mark.parametrize("form", TEXT_FORMS)
def test_uncounted_texts_may_have_any_length_and_nothing_else_is_new(form: Form) -> None:
    space = PlanSpace(roster=NAMES, allowed=frozenset(NAMES), subtask_chars=3)
    made = constraint(space, form, reasoning_chars=2, counted=False)
    assert isinstance(made, Grammar)
    for subtask in ("a", "abc", "a" * 500, 'a"b\n\x00c' * 50, "\\"):
        plan = render(Workflow(steps=(Step(subtask=subtask, worker="a"),)), space, form)
        assert llguidance_admits(made.gbnf, plan)
        assert llguidance_admits(made.gbnf, "long reasoning\n" + plan)
        assert not llguidance_admits(made.gbnf, plan + "\n")
        assert not llguidance_admits(made.gbnf, "two\nlines\n" + plan)


@pytest.mark.parametrize("form", TEXT_FORMS)
@pytest.mark.parametrize("blank", [chr(code) for code in range(0x110000) if chr(code).isspace()])
def test_a_subtask_never_starts_blank(form: Form, blank: str) -> None:
    space = PlanSpace(roster=("a",), allowed=frozenset({"a"}), max_steps=1)
    text = render(Workflow(steps=(Step(subtask="?", worker="a"),)), space, form)
    spelled = json.dumps(blank, ensure_ascii=False)[1:-1]
    assert admits(space, form, text)
    assert admits(space, form, text.replace("?", f"?{spelled}"))
    assert not admits(space, form, text.replace("?", f"{spelled}?"))
    assert not llguidance_admits(written(space, form), text.replace("?", f"{spelled}?"))


# ---------------------------------------------------------------------------------------------- reasoning


@pytest.mark.parametrize("form", TEXT_FORMS)
def test_reasoning_is_one_line_of_bounded_length_that_does_not_start_like_a_plan(form: Form) -> None:
    space = PlanSpace(roster=("a",), allowed=frozenset({"a"}))
    gbnf_text = written(space, form, reasoning_chars=10)
    plan = render(Workflow(steps=(Step(subtask="Do it.", worker="a"),)), space, form)
    for line in ("", "Why not.\n", "0123456789\n", "é\n"):
        assert llguidance_admits(gbnf_text, line + plan), line
    for line in ("\n", "01234567890\n", "my plan\n", "{}\n", "```\n", "- a\n" * 2, " a\n", "a\nb\n", "a\tb\n"):
        assert not llguidance_admits(gbnf_text, line + plan), line


# --------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize("form", TEXT_FORMS)
@pytest.mark.parametrize("access", ["binary", "positional"])
def test_workers_and_steps_share_their_rules(form: Form, access: Any) -> None:
    few = PlanSpace(roster=NAMES[:2], allowed=frozenset(NAMES[:2]), access=access)
    many = PlanSpace(roster=NAMES, allowed=frozenset(NAMES), access=access)
    assert written(many, form).count("::=") == written(few, form).count("::=") < 50


@pytest.mark.parametrize("form", TEXT_FORMS)
def test_a_grammar_past_a_bound_is_refused_by_name(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    space = PlanSpace(
        roster=NAMES, allowed=frozenset(NAMES), access="positional", forbidden_flows=frozenset({("a", "b")})
    )
    with pytest.raises(GrammarTooLarge, match="13 steps"):
        constraint(space.model_copy(update={"max_steps": 13}), form)
    monkeypatch.setattr(gbnf, "MAX_ALTERNATIVES", 50)
    with pytest.raises(GrammarTooLarge, match="50 alternatives"):
        constraint(space, form, reasoning_chars=1)
    monkeypatch.undo()
    monkeypatch.setattr(plan_states, "MAX_STATES", 5)
    with pytest.raises(GrammarTooLarge, match="5 states"):
        constraint(space, form, reasoning_chars=2)


@pytest.mark.parametrize("form", [*TEXT_FORMS, "object"])
def test_a_space_without_any_plan_is_refused(form: Form) -> None:
    with pytest.raises(ConfigError, match="no worker of the roster"):
        constraint(PlanSpace(roster=("a",), allowed=frozenset()), form)


@pytest.mark.parametrize("form", TEXT_FORMS)
def test_rules_that_contradict_one_another_are_refused(form: Form) -> None:
    verified = PlanSpace(
        roster=("a", "b"),
        allowed=frozenset({"a", "b"}),
        min_steps=2,
        last=frozenset({"b"}),
        last_reads_all=True,
        forbidden_flows=frozenset({("b", "a"), ("b", "b")}),
    )
    with pytest.raises(ConfigError, match="contradict"):
        constraint(verified, form)


@pytest.mark.parametrize("form", TEXT_FORMS)
@pytest.mark.parametrize("access", ["binary", "positional"])
def test_a_worker_whose_replies_the_verifier_may_not_read_is_left_out(form: Form, access: Any) -> None:
    space = PlanSpace(
        roster=("a", "b", "c"),
        allowed=frozenset({"a", "b", "c"}),
        access=access,
        last=frozenset({"c"}),
        last_reads_all=True,
        forbidden_flows=frozenset({("c", "b")}),
    )
    for first, admitted in (("a", True), ("b", False)):
        plan = Workflow(
            steps=(
                Step(subtask="Work.", worker=first),
                Step(subtask="Check.", worker="c", access=frozenset({0})),
            )
        )
        assert admits(space, form, render(plan, space, form)) is admitted


# ------------------------------------------------------------------------------------------- JSON schemas


def schema_of(space: PlanSpace, *, array_bounds: bool = True) -> dict[str, Any]:
    made = constraint(space, "object", array_bounds=array_bounds)
    assert isinstance(made, JsonFormat)
    assert made.json_schema is not None
    return made.json_schema


def schema_admits(space: PlanSpace, text: str) -> bool:
    lark = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema_of(space)))
    matcher = llguidance.LLMatcher(bytes_tokenizer(), lark)
    assert not matcher.is_error(), matcher.get_error()
    tokens = bytes_tokenizer().tokenize_str(text)
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


@given(data=st.data(), space=spaces())
@quick(max_examples=60)
def test_the_schema_admits_every_allowed_workflow(data: st.DataObject, space: PlanSpace) -> None:
    workflow = data.draw(workflows(space))
    text = render(workflow, space, "object", reasoning="Because.")
    assert schema_admits(space, text.replace("\x7f", "\\u007f"))  # llguidance writes this one as an escape
    plan = parse(text, space, form="object", repair=False)
    assert (plan.workflow, plan.reasoning) == (workflow, "Because.")


def test_the_schema_bounds_the_number_of_steps_where_the_vendor_takes_that() -> None:
    step = {"subtask": "a", "worker": 0, "access": []}
    plans = {count: json.dumps({"reasoning": "", "steps": [step] * count}) for count in range(4)}
    space = PlanSpace(roster=("a",), allowed=frozenset("a"), min_steps=2, max_steps=2)

    assert [count for count, text in plans.items() if schema_admits(space, text)] == [2]
    assert schema_admits(space.model_copy(update={"may_accept": True}), plans[0])
    assert "maxItems" not in json.dumps(schema_of(space, array_bounds=False))


def test_the_schema_admits_only_allowed_workers_and_known_access() -> None:
    space = PlanSpace(roster=("a", "b"), allowed=frozenset({"b"}), access="positional", recallable=frozenset("a"))
    text = '{"reasoning": "", "steps": [{"subtask": "Do it.", "worker": 1, "access": []}]}'
    assert schema_admits(space, text)
    assert schema_admits(space, text.replace("[]", '["before", 3]'))
    assert not schema_admits(space, text.replace("1", "0"))
    assert not schema_admits(space, text.replace("[]", "[4]"))
    assert not schema_admits(space, text.replace("[]", '["all"]'))
    assert not schema_admits(space, text.replace(', "access": []', ""))


@pytest.mark.parametrize(
    ("inputs", "admitted"),
    [
        ('["all"]', True),
        ("[]", True),
        ('["turn 1"]', True),
        ('["turn 1", "image 2"]', True),
        ('["image 2", "turn 1"]', False),
        ('["turn 1", "turn 1"]', False),
        ('["all", "turn 1"]', False),
        ('["image 3"]', False),
    ],
)
def test_inputs_are_all_or_some_of_their_names_in_order(inputs: str, admitted: bool) -> None:
    names = ("turn 1", "image 1", "image 2")
    space = PlanSpace(roster=("a", "b"), allowed=frozenset("ab"), max_steps=2, inputs=names)
    row = f'[0, "x", [], {inputs}]'
    for text in (row, f"{row}\n{row}"):
        assert admits(space, "rows", text) == admitted == reads_exactly(text, space, "rows")
    assert not admits(space, "rows", row.replace(f", {inputs}", ""))
    step = f'{{"subtask": "x", "worker": 0, "access": [], "inputs": {inputs}}}'
    assert schema_admits(space, f'{{"reasoning": "", "steps": [{step}]}}') == (inputs != '["image 3"]')


STRICT_KEYWORDS = {"type", "properties", "required", "additionalProperties", "items", "enum", "anyOf", "description"}


@given(space=spaces())
@quick(max_examples=50)
def test_the_schema_keeps_to_what_every_vendor_takes(space: PlanSpace) -> None:
    def check(node: dict[str, Any]) -> None:
        assert node.keys() <= STRICT_KEYWORDS
        if node.get("type") == "object":
            assert node["additionalProperties"] is False
            assert node["required"] == list(node["properties"])
        assert node.get("enum", [None])
        for child in (*node.get("properties", {}).values(), *node.get("anyOf", ()), *filter(None, [node.get("items")])):
            check(child)

    check(schema_of(space, array_bounds=False))
    accepts = "to accept" in schema_of(space)["properties"]["steps"]["description"]
    assert accepts == space.may_accept


@pytest.mark.timed
@pytest.mark.parametrize("form", TEXT_FORMS)
def test_that_a_grammar_is_too_large_is_found_out_once(form: Form) -> None:
    pairs = frozenset((a, b) for a, b in zip(NAMES, NAMES[1:] + NAMES[:1], strict=True))
    tangled = PlanSpace(
        roster=NAMES,
        allowed=frozenset(NAMES),
        access="positional",
        forbidden_flows=pairs,
        max_steps=6,
        recallable=frozenset("a"),
    )
    seconds = []
    for _ in range(2):
        start = process_time()
        with pytest.raises(GrammarTooLarge, match="take more than"):
            constraint(tangled, form)
        seconds.append(process_time() - start)
    assert seconds[1] < seconds[0] / 10


MANY_FLOWS = frozenset((f"w{i}", f"w{i * 7 % 20}") for i in range(1, 20)) | {("w0", "w1")}
LARGE = PlanSpace(roster=tuple(f"w{i}" for i in range(20)), allowed=frozenset(f"w{i}" for i in range(20)))


@pytest.mark.parametrize("form", TEXT_FORMS)
@pytest.mark.parametrize("access", ["binary", "positional"])
def test_many_workers_and_flow_rules_are_compiled_in_bounded_time(form: Form, access: Any) -> None:
    space = LARGE.model_copy(update={"forbidden_flows": MANY_FLOWS, "access": access})
    start = process_time()
    try:
        constraint(space, form)
    except GrammarTooLarge:
        relaxed, reason = relaxed_constraint(space, form)
        assert relaxed == constraint(LARGE.model_copy(update={"access": access}), form)
        assert "policy.forbid closes 20 flows between workers, too many for the grammar" in reason
    assert process_time() - start < 3


def test_eight_flow_rules_are_held_by_the_grammar_of_binary_lists() -> None:
    flows = frozenset((f"w{i}", f"w{i + 10}") for i in range(8))
    start = process_time()
    constraint(LARGE.model_copy(update={"forbidden_flows": flows}), "lists")
    assert process_time() - start < 1.5  # seconds; it took 4 with a state for each sequence of workers


def test_plans_with_too_many_steps_for_any_grammar_are_left_to_the_check() -> None:
    grammar_, reason = relaxed_constraint(LARGE.model_copy(update={"max_steps": 13}), "lists")
    assert grammar_ is None
    assert "13 steps" in reason


def test_equal_spaces_share_one_grammar() -> None:
    first, second = (PlanSpace(roster=NAMES, allowed=frozenset(NAMES)) for _ in range(2))
    assert constraint(first, "lists") is constraint(second, "lists")
