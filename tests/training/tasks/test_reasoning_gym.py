from __future__ import annotations

import pytest

from rl_conductor import ConfigError
from rl_conductor_training.tasks import load_task

pytestmark = pytest.mark.filterwarnings("ignore")  # its dependencies warn when they are imported


async def test_a_procedural_set_is_scored_by_its_own_checker() -> None:
    made = load_task("reasoning-gym:chain_sum", size=3, seed=5)
    assert made.samples == load_task("reasoning-gym:chain_sum", size=3, seed=5).samples
    assert made.samples != load_task("reasoning-gym:chain_sum", size=3, seed=6).samples
    first = made.samples[0]
    assert (await made.score(first, f"Let me see.\nAnswer: {first.answer}")).right
    assert not (await made.score(first, "Answer: junk")).right


async def test_a_checker_that_raises_on_junk_or_gives_it_part_marks_makes_it_wrong() -> None:
    for name in ("prime_factorization", "products", "gcd"):
        made = load_task(f"reasoning-gym:{name}", size=1)
        score = await made.score(made.samples[0], "Answer: the quick brown fox")
        assert score.value == 0, name


async def test_a_set_without_answers_is_scored_by_its_checker_alone() -> None:
    made = load_task("reasoning-gym:graph_color", size=1)
    assert made.samples[0].answer == ""
    assert not (await made.score(made.samples[0], "Answer: {}")).right


@pytest.mark.parametrize(
    ("name", "problem"),
    [("no_such_set", "no set 'no_such_set'"), ("game_of_life_halting", "accepts any reply")],
)
def test_what_can_not_be_a_measure_is_refused(name: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_task(f"reasoning-gym:{name}", size=1)


def test_a_wrong_option_is_named() -> None:
    with pytest.raises(ConfigError, match="speed"):
        load_task("reasoning-gym:chain_sum", speed=3)
