from __future__ import annotations

import json
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from rl_conductor import ConfigError, LimitError
from rl_conductor.models import PROVIDERS
from rl_conductor_training.bench.runner import Bench
from rl_conductor_training.bench.systems.base import SystemEntry
from rl_conductor_training.bench.systems.mixture_of_agents import MixtureOfAgents
from rl_conductor_training.bench.systems.random_plan import draw_plan
from rl_conductor_training.bench.systems.sampling import BestOfN, majority_reply
from training.bench import toys
from training.bench.toy_systems import ALONE, PLANNED, lines

Make = Callable[..., Bench]

MIXTURE = '[systems.moa]\nkind = "mixture-of-agents"\naggregator = "speller"\n'
ORACLE = '[systems.oracle]\nkind = "oracle"\n'
FLIPPER = '[pools.toys.workers.flipper]\nmodel = "toy:flipper"\nsampling = { temperature = 1 }\n'


def test_a_system_entry_must_implement_build() -> None:
    class Unready(SystemEntry):
        kind: str = "unready"

    with pytest.raises(TypeError, match=r"abstract.* '?build"):
        Unready()  # type: ignore[abstract]


def test_three_layers_call_every_worker_twice_and_the_aggregator_once() -> None:
    plan = MixtureOfAgents(kind="mixture-of-agents").workflow(["a", "b", "c"], "b")
    assert [step.worker for step in plan.steps] == [*"abc", *"abc", "b"]
    assert [sorted(step.access) for step in plan.steps] == [[], [], [], *[[0, 1, 2]] * 3, [3, 4, 5]]


async def test_every_call_of_a_mixture_counts(bench: Make) -> None:
    row = (await lines(bench(MIXTURE)))["moa"]
    assert (row.usage.calls, toys.calls("adder"), toys.calls("speller")) == (12 * 5, 12 * 2, 12 * 3)
    assert row.steps == 5
    words = sum(
        len(message.text.split())
        for models in toys.MADE.values()
        for toy in models
        for request in toy.requests
        for message in request.messages
    )
    assert row.usage.input_tokens == words
    assert row.accuracy_by_depth[2].value == 1  # the speller sees what the adder found


async def test_the_oracle_takes_the_first_right_workflow_and_counts_only_its_usage(bench: Make) -> None:
    row = (await lines(bench(ORACLE)))["oracle"]
    assert (row.accuracy.value, row.sees_answers) == (1, True)
    assert row.steps == pytest.approx((8 * 1 + 4 * 2) / 12)


async def test_an_oracles_role_must_be_a_worker(bench: Make) -> None:
    roles = '[systems.oracle]\nkind = "oracle"\n[systems.oracle.roles]\na = { worker = "nobody", subtask = "Do it." }\n'
    with pytest.raises(ConfigError, match="nobody, not in the pool"):
        await bench(roles).run()


async def test_self_reflection_repeats_one_worker(bench: Make) -> None:
    row = (await lines(bench('[systems.reflect]\nkind = "self-reflection"\n')))["reflect"]
    assert (row.steps, toys.calls("adder")) == (5, 12 * 5 + 20)
    assert row.description.startswith("adder answers")  # the best on the calibration samples


def test_random_plans_have_every_length_and_read_earlier_steps_only() -> None:
    draw = random.Random(0)
    plans = [draw_plan(["a", "b"], 3, draw) for _ in range(200)]
    assert {len(plan.steps) for plan in plans} == {1, 2, 3}
    assert {step.worker for plan in plans for step in plan.steps} == {"a", "b"}


async def test_random_plans_are_reproducible_and_differ_between_repetitions(bench: Make) -> None:
    random_ = '[systems.random]\nkind = "random"\n'
    first, again = [(await bench(random_, repeats=2).run())[0].systems[0].results for _ in range(2)]
    assert first == again
    assert any(even.workers != odd.workers for even, odd in zip(first[::2], first[1::2], strict=True))


def test_the_majority_answer_wins_and_ties_go_to_the_first() -> None:
    assert majority_reply(["4", " 5", "5 "], ["four", "five!", "V"]) == "five!"
    assert majority_reply(["4", "5"], ["four", "five"]) == "four"
    assert majority_reply([None, None, None], ["", "what?", "who?"]) == "what?"
    assert majority_reply([], []) == ""


async def test_self_consistency_stays_within_its_budget(bench: Make) -> None:
    sampled = '[systems.sampled]\nkind = "self-consistency"\nlike = "oracle"\nworker = "flipper"\n'
    bench_run = bench(FLIPPER + ORACLE + sampled)
    rows = await lines(bench_run)
    (section,) = await bench_run.run()
    results = section.systems[1].results
    each = {result.key.sample: result.usage.total_tokens / result.steps for result in results}
    assert all(result.usage.total_tokens <= rows["oracle"].tokens for result in results)
    assert all(result.usage.total_tokens + each[result.key.sample] > rows["oracle"].tokens for result in results)
    assert rows["sampled"].accuracy.value == pytest.approx(6 / 12)  # one in three samples is wrong, the majority right


async def test_self_consistency_stays_within_its_dollar_budget(bench: Make) -> None:
    sampled = '[systems.sampled]\nkind = "self-consistency"\nlike = "oracle"\nworker = "flipper"\nspend = "usd"\n'
    rows = await lines(bench(FLIPPER + ORACLE + sampled))
    assert rows["oracle"].dollars / 2 < rows["sampled"].dollars <= rows["oracle"].dollars


BEST = '[systems.best]\nkind = "best-of-n"\nworker = "flipper"\n'


async def test_best_of_n_samples_with_different_seeds_and_then_chooses(bench: Make) -> None:
    row = (await lines(bench(FLIPPER + MIXTURE + BEST + 'like = "moa"\n')))["best"]
    drawing = [
        request for toy in toys.MADE["flipper"] for request in toy.requests if request.sampling.temperature == 0.7
    ]
    count = round(row.steps) - 1
    assert count >= 2
    assert f"choice among {count} samples" in row.description
    assert {request.sampling.seed for request in drawing} == set(range(count))


@pytest.mark.parametrize(("layers", "spend"), [(2, "tokens"), (3, "usd"), (3, "tokens")])
async def test_best_of_n_uses_most_of_its_budget_without_exceeding_it(
    bench: Make, folder: Path, layers: int, spend: str
) -> None:
    (folder / "learn.jsonl").write_text((folder / "test.jsonl").read_text().replace("add ", "please add "))
    more = f'like = "moa"\nspend = "{spend}"\n'
    rows = await lines(bench(FLIPPER + MIXTURE + f"layers = {layers}\n" + BEST + more))
    moa_spending, best = (row.dollars if spend == "usd" else row.tokens for row in (rows["moa"], rows["best"]))
    assert best <= moa_spending
    assert moa_spending < best * (1.1 + 2 / rows["best"].steps)  # no other sample would fit, with reading it


async def test_best_of_n_takes_a_single_sample_where_a_choice_is_too_expensive(bench: Make) -> None:
    row = (await lines(bench(FLIPPER + ALONE + BEST + 'like = "flipper"\n')))["best"]
    assert row.steps == 1


def test_the_number_of_samples_within_a_budget_is_rounded_down() -> None:
    best = BestOfN(kind="best-of-n", like="moa", max_samples=9)
    assert [best.count_samples(budget, 360, 490) for budget in (50, 359, 360, 489, 490, 10_000)] == [1, 1, 2, 2, 3, 9]
    assert best.count_samples(0, 0, 0) == 9  # it costs nothing


async def test_equal_spending_needs_a_system_that_ran_before(bench: Make) -> None:
    with pytest.raises(ConfigError, match="'planned' names no system that ran before; there are adder, speller"):
        await bench(ALONE + '[systems.sampled]\nkind = "self-consistency"\nlike = "planned"\n' + PLANNED).run()


async def test_repetitions_have_different_seeds_where_a_worker_samples(bench: Make) -> None:
    await bench(FLIPPER + ALONE, repeats=3).run()
    assert {request.sampling.seed for toy in toys.MADE["flipper"] for request in toy.requests} == {0, 1, 2}
    assert toys.calls("adder") == 12  # a greedy worker would only say the same again: the replies are cached


async def test_a_second_round_revises_the_answer(bench: Make) -> None:
    rows = await lines(bench(PLANNED + PLANNED.replace("planned", "twice") + "rounds = 2\n"))
    assert rows["twice"].usage.calls == rows["planned"].usage.calls + 12
    assert rows["twice"].steps == rows["planned"].steps  # it accepts what it reads


async def test_an_unseen_pool_has_other_names_in_another_order_and_keeps_its_models(bench: Make) -> None:
    renamed = '[pools.toys.rename]\nspeller = "w1"\nadder = "w2"\n'
    rows = await lines(bench(renamed + ALONE))
    assert list(rows) == ["w1", "w2"]
    assert rows["w2"].accuracy.value == pytest.approx(6 / 12)


@pytest.mark.parametrize("table", ["rename", "strengths"])
async def test_only_workers_of_the_pool_can_be_renamed_or_described_anew(bench: Make, table: str) -> None:
    with pytest.raises(ConfigError, match="rename or strengths names nobody, not in the pool"):
        await bench(f'[pools.toys.{table}]\nnobody = "w1"\n' + ALONE).run()


async def test_prompts_use_the_strengths_of_the_bench_file(bench: Make) -> None:
    await bench('[pools.toys.strengths]\nadder = "finds sums"\n' + PLANNED).run()
    prompt = toys.MADE["planner"][0].requests[0].messages[0].text
    assert "0 adder: finds sums" in prompt
    assert "1 speller: spells" in prompt


async def test_a_system_runs_on_the_pools_that_it_names(bench: Make) -> None:
    other = '[pools.other.workers]\nw1 = { model = "toy:adder" }\n[systems.planned]\npools = ["other"]\n'
    sections = await bench(ALONE + other + PLANNED.partition("\n")[2]).run()
    names = {section.pool: [entrant.system.name for entrant in section.systems] for section in sections}
    assert names == {"toys": ["adder", "speller"], "other": ["w1", "planned"]}


async def test_a_budget_needs_the_price_of_each_model(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROVIDERS, "unpriced", "training.bench.toys:unpriced")
    worker = bench(ALONE + '[pools.toys.workers.third]\nmodel = "unpriced:adder"\n')
    worker.budget = Decimal(1000)
    with pytest.raises(ConfigError, match="the price of worker 'third' is unknown"):
        await worker.run()
    assert toys.calls() == 0
    planner = bench(PLANNED.replace("toy:", "unpriced:"), concurrency=1)
    planner.budget = Decimal(1000)
    with pytest.raises(ConfigError, match=r"usd=1000 can't be enforced: a model was called whose price is unknown"):
        await planner.run()
    assert planner.meter.paid.unpriced_calls == 1


async def test_a_budget_goes_on_after_a_failed_call_of_a_model_whose_price_is_known(bench: Make, folder: Path) -> None:
    failing = bench(ALONE + '[pools.toys.workers.third]\nmodel = "toy:failing"\n')
    failing.budget = Decimal(1000)
    (section,) = await failing.run()
    assert [result.error for result in section.systems[2].results] == ["step 1: third: the server is overloaded"] * 12
    assert failing.meter.paid.unpriced_calls == 12
    assert not failing.meter.has_unknown_price


async def test_a_budget_needs_the_price_of_the_judge_that_answers(
    bench: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROVIDERS, "unpriced", "training.bench.toys:unpriced")
    judged = {"id": "j", "question": "add 1 2", "answer": "3", "scoring": "judge"}
    (folder / "test.jsonl").write_text(json.dumps(judged))
    asked = bench(ALONE + '[tasks.toys.options]\njudge = "unpriced:judge"\n')
    asked.budget = Decimal(1000)
    with pytest.raises(ConfigError, match=r"usd=1000 can't be enforced: a model was called whose price is unknown"):
        await asked.run()


async def test_a_budget_stops_the_bench_before_the_next_sample_and_ignores_cached_calls(bench: Make) -> None:
    bench_run = bench(ALONE, concurrency=1)
    bench_run.budget = Decimal(7)
    with pytest.raises(LimitError, match=r"the budget of \$7.00 is spent"):
        await bench_run.run()
    assert toys.calls() == 3  # three words a question, a dollar each
    more = bench(ALONE, concurrency=1)
    more.budget = Decimal(100_000)
    await more.run()
    assert toys.calls() == 24
    assert more.meter.paid.cost == 2 * (6 * 3 + 2 * 2 + 4 * 6) - 3 * 3
