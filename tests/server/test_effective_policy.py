from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_conductor.conductor import Conductor
from rl_conductor.errors import PolicyError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.types import Card, Effort
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import DataRule, Flow, Policy
from rl_conductor_server.errors import ApiError
from rl_conductor_server.runs.effective_policy import EFFORTS, check_selectors, merge_policies

CARDS = (Card(name="a", tags={"fast"}, region="eu"), Card(name="b", tags={"fast"}), Card(name="c", region="us"))
SELECTORS = st.frozensets(st.sampled_from(["a", "b", "c", "*", "tag:fast", "region:eu", "region:us"]), max_size=3)
POLICIES = st.builds(Policy, allow=SELECTORS.filter(bool), deny=SELECTORS)


@given(ours=POLICIES, asked=POLICIES)
def test_a_worker_is_allowed_if_both_policies_allow_it(ours: Policy, asked: Policy) -> None:
    held = merge_policies(ours, asked, CARDS)
    for card in CARDS:
        each = [policy.denial_reason(card) is None for policy in (ours, asked)]
        assert (held.denial_reason(card) is None) == all(each)


def test_what_either_policy_denies_is_denied_in_nested_conductors_too() -> None:
    nested = [Card(name="cheap", tags={"fast"}), Card(name="far", region="us"), Card(name="near", region="eu")]
    held = merge_policies(Policy(deny={"tag:fast"}), Policy(deny={"region:us"}), CARDS)
    inside = Policy().within([held], nested, Card(name="planner"))
    assert [card.name for card in nested if inside.denial_reason(card) is None] == ["near"]
    everybody = merge_policies(Policy(), Policy(deny={"*"}), CARDS)
    with pytest.raises(PolicyError, match=r"a: policy\.deny names it"):
        everybody.space(CARDS, max_steps=1)


@pytest.mark.parametrize("rule", ["verifier", "final", "single", "data_class"])
def test_a_request_can_not_change_a_rule_of_the_server(rule: str) -> None:
    ours = Policy.model_validate({rule: "a"})
    assert getattr(merge_policies(ours, Policy(), CARDS), rule) == "a"
    assert getattr(merge_policies(Policy(), ours, CARDS), rule) == "a"
    with pytest.raises(PolicyError, match=f"policy.{rule} is 'a' on this server"):
        merge_policies(ours, Policy.model_validate({rule: "b"}), CARDS)


def test_a_request_can_not_relax_data_rules() -> None:
    ours = Policy(data_rules={"personal": DataRule(regions={"eu"})})
    asked = Policy(data_class="personal", data_rules={"personal": DataRule()})
    held = merge_policies(ours, asked, CARDS)
    assert [card.name for card in CARDS if held.denial_reason(card) is None] == ["a"]


def arm(planner: Card, *workers: Card) -> Conductor:
    pool = WorkerPool([Worker.of(card.name, ScriptedModel(""), card=card) for card in workers])
    return Conductor(Planner(model=ScriptedModel(""), card=planner), pool)


HERE = arm(Card(name="planner", tags={"house"}), *CARDS)
ELSEWHERE = arm(Card(name="planner", region="asia"), Card(name="old", tags={"slow"}))


@pytest.mark.parametrize(
    "asked",
    [
        Policy(deny={"tag:slow"}),
        Policy(allow={"a", "old"}),
        Policy(forbid=(Flow(reader="old", source="a"),)),
        Policy(forbid=(Flow(reader="tag:house", source="region:asia"),)),
    ],
)
@pytest.mark.parametrize("arms", [(HERE, ELSEWHERE), (ELSEWHERE, HERE)])
def test_a_selector_may_match_a_worker_of_either_arm(asked: Policy, arms: tuple[Conductor, Conductor]) -> None:
    check_selectors(asked, arms)
    here = arms[0]
    held = merge_policies(Policy(), asked, here.pool.cards, planner=here.planner.card)
    held.check_selectors(here.pool.cards, planners=[here.planner.card])


def test_impossible_flows_of_a_request_are_dropped() -> None:
    possible = Flow(reader="planner", source="b")
    held = merge_policies(
        Policy(), Policy(forbid=(Flow(reader="old", source="a"), possible)), CARDS, planner=Card(name="planner")
    )
    assert held.forbid == (possible,)


def test_a_selector_without_a_match_is_named_in_the_error() -> None:
    with pytest.raises(ApiError, match="names 'tag:slow', but there are only a, b, c, tag:fast") as caught:
        check_selectors(Policy(deny={"tag:slow"}), [HERE])
    assert caught.value.param == "conductor.policy.deny"
    with pytest.raises(ApiError, match="names 'tag:house'"):  # planners do no step, so nobody can keep them from one
        check_selectors(Policy(deny={"tag:house"}), [HERE, ELSEWHERE])


@pytest.mark.parametrize(("effort", "steps"), [(None, 5), ("minimal", 1), ("low", 2), ("medium", 5), ("high", 5)])
def test_an_effort_limits_the_plan(effort: Effort | None, steps: int) -> None:
    held = Limits(rounds=2, usd=Decimal(1)).lowered(EFFORTS[effort])
    assert held.steps == steps
    assert held.rounds == (2 if effort in (None, "high") else 1)
    assert held.usd == 1
