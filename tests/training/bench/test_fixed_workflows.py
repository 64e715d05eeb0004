"""The systems that an engineer would write without learning, or with a classifier instead of a planner."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rl_conductor import ConfigError
from rl_conductor_training.bench.runner import Bench
from rl_conductor_training.bench.summary import SummaryRow, summarize
from training.bench import toys
from training.bench.toy_systems import lines

Make = Callable[..., Bench]

FIXED = '[systems.fixed]\nkind = "fixed"\n'
LINEAR = '[systems.linear]\nkind = "linear"\n'
RULES = """
[systems.rules]
kind = "rules"
otherwise = ["add"]
rules = [
    { pattern = "add.*spell", chain = ["add", "spell"] },
    { pattern = "^spell", chain = ["spell"] },
]
roles.add = { worker = "adder", subtask = "Add." }
roles.spell = { worker = "speller", subtask = "Spell." }
"""


async def accuracy_by_domain(bench: Bench) -> tuple[SummaryRow, dict[str, float], dict[str, set[str]]]:
    """The row of the only system, its share of right answers and its choices by domain."""
    (task_result,) = await bench.run()
    (system,) = task_result.systems
    domains: dict[str, list[float]] = {}
    choices: dict[str, set[str]] = {}
    for result in system.results:
        domains.setdefault(result.domain, []).append(result.value)
        choices.setdefault(result.domain, set()).add(result.choice)
    return summarize(system), {name: sum(values) / len(values) for name, values in domains.items()}, choices


async def test_the_best_fixed_workflow_is_chosen_on_the_calibration_samples(bench: Make) -> None:
    row, accuracy, choices = await accuracy_by_domain(bench(FIXED))
    assert accuracy == {"add": 1, "spell": 0, "both": 0}  # 12 of the 20 calibration questions are sums
    assert set.union(*choices.values()) == {"adder"}
    assert "the best of 4 workflows on" in row.description
    assert "n = 20" in row.description
    assert row.steps == 1


async def test_the_linear_classifier_picks_the_workflow_by_the_words_of_the_question(bench: Make) -> None:
    row, accuracy, choices = await accuracy_by_domain(bench(LINEAR))
    assert (accuracy["add"], accuracy["spell"]) == (1, 1)
    assert (choices["add"], choices["spell"]) == ({"adder"}, {"speller"})
    assert toys.calls("planner") == 0
    assert row.valid_plans is None


async def test_the_first_matching_rule_decides(bench: Make) -> None:
    row, accuracy, choices = await accuracy_by_domain(bench(RULES))
    assert accuracy == {"add": 1, "spell": 1, "both": 1}
    assert choices["both"] == {"add → spell"}
    assert row.accuracy.value == 1


async def test_fixed_and_linear_share_the_runs_on_the_calibration_samples(bench: Make) -> None:
    alone, _, _ = await accuracy_by_domain(bench(FIXED))
    assert alone.runs == 12
    calls = toys.calls()
    await lines(bench(FIXED + LINEAR))
    assert toys.calls() - calls < calls + 12 * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RULES.replace('"^spell"', '"(spell"'), "is no regular expression"),
        (RULES.replace('["spell"]', '["sing"]'), "the rules name roles that are not in roles: sing"),
        (RULES.replace('worker = "adder"', 'worker = "singer"'), "the roles of rules name singer, not in the pool"),
    ],
)
async def test_wrong_rules_are_reported(bench: Make, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        await bench(text).run()
