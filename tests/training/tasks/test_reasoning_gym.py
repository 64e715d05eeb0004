from __future__ import annotations

import pytest

from rl_conductor import ConfigError
from rl_conductor_training.tasks import load_task

pytestmark = pytest.mark.filterwarnings("ignore")  # its dependencies warn when they are imported


async def test_a_generated_set_is_scored_by_its_own_checker() -> None:
    task = load_task("reasoning-gym:chain_sum", size=3, seed=5)
    assert task.samples == load_task("reasoning-gym:chain_sum", size=3, seed=5).samples
    assert task.samples != load_task("reasoning-gym:chain_sum", size=3, seed=6).samples
    first = task.samples[0]
    assert (await task.score(first, f"Let me see.\nAnswer: {first.answer}")).right
    assert not (await task.score(first, "Answer: junk")).right


@pytest.mark.parametrize("name", ["mini_sudoku", "futoshiki", "tower_of_hanoi"])
async def test_an_answer_of_several_lines_is_scored_whole(name: str) -> None:
    task = load_task(f"reasoning-gym:{name}", size=1)
    grid = task.samples[0].answer
    for reply in (f"My answer: hm.\nAnswer: {grid}", f"**Answer:**\n\n```\n{grid}\n```", grid, f"\\boxed{{{grid}}}"):
        assert (await task.score(task.samples[0], reply)).right, reply
    first_line = grid.partition("\n")[0]
    assert not (await task.score(task.samples[0], f"{grid}\nAnswer: {first_line}")).right


async def test_junk_is_wrong_even_if_the_checker_raises_or_gives_a_partial_score() -> None:
    for name in ("prime_factorization", "products", "gcd"):
        task = load_task(f"reasoning-gym:{name}", size=1)
        score = await task.score(task.samples[0], "Answer: the quick brown fox")
        assert score.value == 0, name


async def test_a_set_without_answers_is_scored_by_its_checker_alone() -> None:
    task = load_task("reasoning-gym:graph_color", size=1)
    assert task.samples[0].answer == ""
    assert not (await task.score(task.samples[0], "Answer: {}")).right


@pytest.mark.parametrize(
    ("name", "problem"),
    [("no_such_set", "no set 'no_such_set'"), ("game_of_life_halting", "accepts any reply")],
)
def test_unusable_sets_are_rejected(name: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_task(f"reasoning-gym:{name}", size=1)


def test_a_wrong_option_is_named() -> None:
    with pytest.raises(ConfigError, match="speed"):
        load_task("reasoning-gym:chain_sum", speed=3)
