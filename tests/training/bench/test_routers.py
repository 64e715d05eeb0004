from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from rl_conductor import ConfigError
from rl_conductor_training.bench.runner import Bench
from rl_conductor_training.bench.systems.routers.embedding import embed
from rl_conductor_training.bench.systems.routers.masrouter import MasRouter
from rl_conductor_training.bench.systems.routers.routerdc import RouterDC, contrastive_loss
from rl_conductor_training.bench.systems.routers.smoothie import estimate_distances
from training.bench import toys
from training.bench.toy_systems import BEST, lines

Make = Callable[..., Bench]

THINGS = ("sea", "forest", "moon", "old harbour", "winter", "market")


def test_embeddings_leave_the_log_of_the_program_as_it_is() -> None:
    code = "import logging; from rl_conductor_training.bench.systems.routers.embedding import embed; embed(['a'])"
    code += "; import rl_conductor_training.learn; print(logging.getLogger().level, logging.getLogger().handlers)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "30 []\n"


def test_embeddings_have_norm_one_and_similar_texts_are_close() -> None:
    sums, more, poem = embed(["add two and three", "what is five plus two", "a poem about the sea"])
    assert np.linalg.norm(sums) == pytest.approx(1)
    assert sums @ more > sums @ poem


def test_the_contrastive_loss_matches_a_manual_calculation() -> None:
    logits = np.array([[1.0, 0.0, 2.0], [0.0, 0.0, 0.0]])
    goods = np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]])  # in the second row none is wrong: nothing to learn
    value, slope = contrastive_loss(logits, goods, goods == 0)
    assert value == pytest.approx(np.log(1 + np.exp(-1) + np.exp(1)) / 2)
    for place in np.ndindex(2, 3):
        moved = logits.copy()
        moved[place] += 1e-6
        assert slope[place] == pytest.approx((contrastive_loss(moved, goods, goods == 0)[0] - value) / 1e-6, abs=1e-5)


def test_the_gradient_of_routerdc_matches_finite_differences() -> None:
    router = RouterDC(kind="routerdc", dimensions=2)
    draw = np.random.default_rng(0)
    questions, right = draw.normal(size=(5, 3)), np.array([[1.0, 0], [0, 1], [1, 1], [1, 0], [0, 0]])
    partners, strangers = np.full((5, 5), 0.25) * (1 - np.eye(5)), np.zeros((5, 5))
    flat = draw.normal(size=(3 + 2) * 2)
    value, slope = router._loss(flat, questions, right, partners, strangers)
    for place in range(len(flat)):
        moved = flat.copy()
        moved[place] += 1e-6
        moved_loss = router._loss(moved, questions, right, partners, strangers)[0]
        assert slope[place] == pytest.approx((moved_loss - value) / 1e-6, abs=1e-4)


def test_routerdc_learns_the_skills_of_workers() -> None:
    sums = [f"What is {a} times {b}?" for a in (13, 27, 48, 91) for b in (5, 6, 7)]
    texts = [f"Write a {kind} about the {thing}." for kind in ("poem", "short story") for thing in THINGS]
    right = np.array([[1.0, 0.0, 0.0]] * len(sums) + [[0.0, 1.0, 0.0]] * len(texts))
    space = RouterDC(kind="routerdc").train(embed([*sums, *texts]), right, 0)
    requests = [
        "What is 77 times 8?",
        "Calculate 5 plus 12.",
        "Write a limerick about the wind.",
        "Tell me about a castle.",
    ]
    assert space.scores(embed(requests)).argmax(axis=1).tolist() == [0, 0, 1, 1]


async def test_routerdc_calls_one_worker_and_beats_the_best_single_one(bench: Make) -> None:
    rows = await lines(bench(BEST + '[systems.router]\nkind = "routerdc"\n'))
    assert rows["router"].steps == 1
    assert rows["router"].accuracy.value > rows["best"].accuracy.value


async def test_masrouter_learns_to_chain_two_workers_where_needed(bench: Make) -> None:
    rows = await lines(bench('[systems.router]\nkind = "masrouter"\ndraws = 12\ncost = 0.05\n'))
    assert rows["router"].accuracy.value >= (6 + 2) / 12


def test_masrouter_prefers_the_cheaper_of_two_right_options() -> None:
    router = MasRouter(kind="masrouter")
    questions = embed(["add 1 2", "add 2 2", "spell 4", "spell 5"] * 2)
    choices: list[tuple[str, tuple[str, ...]]] = [
        ("single", (who,)) for who in ("adder", "adder", "speller", "speller")
    ]
    choices += [("chain", ("adder", "adder"))] * 2 + [("chain", ("speller", "speller"))] * 2
    policy = router.train(questions, choices, np.array([0.98] * 4 + [0.5] * 4), ["adder", "speller"])
    assert policy.choose(embed(["add 3 3"])[0]) == ("single", ("adder",))
    assert policy.choose(embed(["spell 7"])[0]) == ("single", ("speller",))


def test_smoothie_finds_the_worker_closest_to_the_right_answers() -> None:
    draw = np.random.default_rng(0)
    truth = draw.normal(size=(400, 8))
    replies = np.stack([truth + noise * draw.normal(size=truth.shape) for noise in (1.0, 0.1, 0.5)], axis=1)
    assert estimate_distances(replies) == pytest.approx([8 * 1.0, 8 * 0.01, 8 * 0.25], rel=0.1, abs=0.1)


async def test_smoothie_calls_and_counts_every_worker(bench: Make) -> None:
    third = '[pools.toys.workers.flipper]\nmodel = "toy:flipper"\nsampling = { temperature = 0 }\n'
    row = (await lines(bench(third + '[systems.router]\nkind = "smoothie"\n')))["router"]
    assert row.steps == 3
    assert row.accuracy.value >= 6 / 12  # two of three add
    assert toys.calls("speller") == 12 + 20


async def test_smoothie_needs_three_workers(bench: Make) -> None:
    with pytest.raises(ConfigError, match="three workers or more, but the pool has 2"):
        await bench('[systems.router]\nkind = "smoothie"\n').run()
