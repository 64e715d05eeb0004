"""Policies, and the plans that they allow."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from rl_conductor.errors import PolicyError
from rl_conductor.types import Card
from rl_conductor.workflow.policy import DataRule, Flow, Policy

A = Card(name="a", tags=frozenset({"external", "fast"}), region="us")
B = Card(name="b", tags=frozenset({"internal"}), region="eu")
C = Card(name="c")
CARDS = (A, B, C)


def allowed(policy: Policy) -> set[str]:
    return set(policy.space(CARDS).allowed)


def test_a_single_name_in_place_of_a_list_is_an_error_that_shows_the_list() -> None:
    wrong: Any = "a"
    with pytest.raises(ValidationError, match=r"write a list of names: \['a'\]"):
        Policy(deny=wrong)


def test_by_default_everybody_may_do_everything() -> None:
    space = Policy().space(CARDS)

    assert (space.roster, space.choices) == (("a", "b", "c"), ("a", "b", "c"))
    assert (space.min_steps, space.max_steps, space.last, space.forbidden_flows) == (1, 5, None, frozenset())


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        ({"allow": {"a", "b"}}, {"a", "b"}),
        ({"allow": {"tag:external"}}, {"a"}),
        ({"allow": {"region:eu", "c"}}, {"b", "c"}),
        ({"deny": {"a"}}, {"b", "c"}),
        ({"deny": {"tag:fast", "region:eu"}}, {"c"}),
        ({"allow": {"a", "b"}, "deny": {"a"}}, {"b"}),
        ({"allow": {"*"}, "deny": {"tag:none", "region:none", "region:", "tag:"}}, {"a", "b", "c"}),
        ({"allow": {"tag", "region", "other:a", "a"}}, {"a"}),
        ({"single": "b"}, {"b"}),
    ],
)
def test_selectors_name_workers_tags_and_regions(rules: dict[str, Any], left: set[str]) -> None:
    assert allowed(Policy(**rules)) == left


def test_a_worker_that_is_kept_out_is_told_why() -> None:
    assert Policy(single="b").denial_reason(A) == "policy.single is 'b'"
    assert Policy(deny=frozenset({"*"})).denial_reason(A) == "policy.deny names it"
    assert Policy(allow=frozenset()).denial_reason(A) == "policy.allow does not name it"
    assert Policy().denial_reason(A) is None


@pytest.mark.parametrize(
    ("reader", "source", "possible"),
    [("a", "b", True), ("tag:external", "region:eu", True), ("a", "z", False), ("z", "b", False)],
)
def test_a_flow_is_possible_where_both_sides_mean_somebody(reader: str, source: str, possible: bool) -> None:
    assert Flow(reader=reader, source=source).is_possible(CARDS) == possible


def test_nobody_left_is_an_error_that_says_why_of_each() -> None:
    with pytest.raises(PolicyError, match=r"a: policy.deny names it; b: .*; c: ") as refused:
        Policy(deny=frozenset({"*"})).space(CARDS)
    assert refused.value.rule == "allow"


@pytest.mark.parametrize(
    ("rules", "slip"),
    [
        ({"deny": {"tag:fast", "tag:extrenal"}}, "deny names 'tag:extrenal', but there are only a, b, c, tag:"),
        ({"allow": {"a", "region:moon"}}, "allow names 'region:moon', but .* region:eu"),
        ({"deny": {"planner"}}, "deny names 'planner'"),
        ({"deny": {"tag:"}}, "deny names 'tag:'"),
        ({"forbid": [Flow(reader="tag:typo", source="a")]}, "forbid names 'tag:typo', but .*planner"),
    ],
)
def test_a_selector_that_means_nobody_is_refused_with_what_there_is(rules: dict[str, Any], slip: str) -> None:
    with pytest.raises(PolicyError, match=rf"^policy.{slip}") as refused:
        Policy(**rules).check_selectors(CARDS, planners=[Card(name="planner")])
    assert refused.value.rule == next(iter(rules))


def test_selectors_mean_somebody_of_the_whole_pool_and_in_flows_the_planner() -> None:
    flow = Flow(reader="planner", source="region:eu")
    Policy(allow={"a"}, deny={"a", "b", "*"}, forbid=(flow,)).check_selectors(CARDS, planners=[Card(name="planner")])


# --------------------------------------------------------------------------------------- user's data


RULES = {
    "public": DataRule(),
    "private": DataRule(tags=frozenset({"internal"})),
    "european": DataRule(regions=frozenset({"eu"})),
}


@pytest.mark.parametrize(
    ("data_class", "left"),
    [(None, {"a", "b", "c"}), ("public", {"a", "b", "c"}), ("private", {"b"}), ("european", {"b"})],
)
def test_data_goes_only_where_its_class_may_go(data_class: str | None, left: set[str]) -> None:
    assert allowed(Policy(data_class=data_class, data_rules=RULES)) == left


def test_refused_data_is_told_why() -> None:
    private, european = (Policy(data_class=name, data_rules=RULES) for name in ("private", "european"))

    assert "tagged internal" in (private.data_denial_reason(A) or "")
    assert "must stay in eu, not us" in (european.data_denial_reason(A) or "")
    assert "an unknown region" in (european.data_denial_reason(C) or "")
    assert european.data_denial_reason(B) is None


@pytest.mark.parametrize(("rules", "known"), [(RULES, "european, private, public"), ({}, "none")])
def test_an_unknown_class_of_data_goes_nowhere(rules: dict[str, DataRule], known: str) -> None:
    with pytest.raises(PolicyError, match=known) as refused:
        Policy(data_class="secret", data_rules=rules).space(CARDS)
    assert refused.value.rule == "data_class"


# ------------------------------------------------------------------------------------------- flows


def test_flows_are_forbidden_between_all_that_the_selectors_match() -> None:
    policy = Policy(forbid=(Flow(reader="tag:external", source="tag:internal"), Flow(reader="b", source="*")))

    assert policy.space(CARDS).forbidden_flows == {("a", "b"), ("b", "a"), ("b", "b"), ("b", "c")}
    assert policy.may_read(B, A) is False
    assert policy.may_read(C, B) is True


# ------------------------------------------------------------------------------- who does the last


@pytest.mark.parametrize("rule", ["verifier", "final", "single"])
def test_who_does_the_last_step_can_be_fixed(rule: str) -> None:
    space = Policy(**{rule: "b"}).space(CARDS)

    assert space.last == frozenset("b")
    assert space.last_reads_all is (rule == "verifier")
    assert space.min_steps == (2 if rule == "verifier" else 1)
    assert space.max_steps == (1 if rule == "single" else 5)


@pytest.mark.parametrize("rule", ["verifier", "final", "single"])
def test_who_is_fixed_for_the_last_step_must_be_able_to_work(rule: str) -> None:
    with pytest.raises(PolicyError, match=f"policy.{rule} is 'b'.*policy.deny names it") as refused:
        Policy(**{rule: "b", "deny": {"b"}}).space(CARDS)
    assert refused.value.rule == rule

    with pytest.raises(PolicyError, match="the pool has only a, b, c") as refused:
        Policy(**{rule: "nobody"}).space(CARDS)
    assert refused.value.rule == rule


def test_two_cannot_both_do_the_last_step() -> None:
    with pytest.raises(PolicyError, match=r"policy.verifier='a' and policy.final='b' can't all"):
        Policy(verifier="a", final="b").space(CARDS)

    assert Policy(verifier="a", final="a").space(CARDS).last == frozenset("a")


def test_a_verifier_needs_somebody_to_verify() -> None:
    with pytest.raises(PolicyError, match=r"limits.steps is 1") as refused:
        Policy(verifier="a").space(CARDS, max_steps=1)
    assert refused.value.rule == "verifier"


def test_what_else_bounds_a_plan_is_passed_on() -> None:
    space = Policy().space(CARDS, max_steps=3, access="positional")

    assert (space.max_steps, space.access) == (3, "positional")


def test_a_misspelled_rule_is_refused() -> None:
    with pytest.raises(ValidationError, match="denied"):
        Policy.model_validate({"denied": ["a"]})


def test_a_policy_travels_as_json() -> None:
    policy = Policy(data_class="private", data_rules=RULES, forbid=(Flow(reader="a", source="b"),), deny=frozenset("c"))

    assert Policy.model_validate_json(policy.model_dump_json()) == policy


def test_the_policies_around_a_nested_run_add_their_denials_and_data_rules() -> None:
    private = Policy(data_class="private", data_rules={"private": DataRule(regions=frozenset({"eu"}))})
    denying = Policy(deny=frozenset({"tag:fast"}))

    assert Policy().within((), CARDS, B) == Policy()
    assert Policy(deny=frozenset("b")).within((denying,), CARDS, B).deny == {"a", "b"}
    assert Policy().within((private,), CARDS, B).deny == {"a", "c"}
    with pytest.raises(PolicyError, match="planner of a nested conductor may not see"):
        Policy().within((private,), CARDS, A)
    assert (denying.applies_to_nested_runs, private.applies_to_nested_runs) == (True, True)
    assert not Policy(allow=frozenset("a")).applies_to_nested_runs


WRITTEN = """
from rl_conductor.workflow.policy import DataRule, Policy

names = frozenset("abcdefgh")
print(Policy(allow=names, deny=names, data_rules={"x": DataRule(tags=names, regions=names)}).model_dump_json())
"""


def test_equal_policies_are_equal_text_in_every_process() -> None:
    texts = [
        subprocess.run(
            [sys.executable, "-c", WRITTEN],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "12"
    ]
    assert texts[0] == texts[1]
    assert Policy.model_validate_json(texts[0]).allow == frozenset("abcdefgh")
