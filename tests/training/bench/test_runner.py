from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_conductor import ConfigError
from rl_conductor_training.bench.results import ResultFile, SampleResult
from rl_conductor_training.bench.runner import Bench
from rl_conductor_training.bench.summary import SummaryRow, summarize
from training.bench import toys

Make = Callable[..., Bench]

ALONE = '[systems.alone]\nkind = "alone"\n'
BEST = '[systems.best]\nkind = "best-single"\n'
PLANNED = '[systems.planned]\nkind = "conductor"\nplanner = { model = "toy:planner" }\n'
STUMBLING = '[systems.stumbling]\nkind = "conductor"\nplanner = { model = "toy:stumbler" }\n'

JUDGED = """
[systems.adder]
kind = "alone"
workers = ["adder"]
[tasks.judged]
task = "jsonl:{folder}/judged.jsonl"
options = {{ judge = "toy:{judge}" }}
"""
SUMS = [
    {"id": f"j{n}", "question": f"add 1 {n}", "answer": answer, "scoring": "judge"}
    for n, answer in enumerate(("1", "two", "3"))
]


async def lines(bench: Bench) -> dict[str, SummaryRow]:
    (section,) = await bench.run()
    return {one.system: one for one in map(summarize, section.systems)}


async def test_each_worker_alone_is_right_on_what_it_can_do(bench: Make) -> None:
    found = await lines(bench(ALONE))
    assert found["adder"].accuracy.value == pytest.approx(6 / 12)
    assert found["speller"].accuracy.value == pytest.approx(2 / 12)
    assert found["adder"].accuracy_by_depth[2].value == 0
    assert (found["adder"].steps, found["adder"].valid_plans, found["adder"].accuracy_if_valid) == (1, None, None)


async def test_tokens_and_dollars_are_those_that_the_models_charged(bench: Make) -> None:
    found = (await lines(bench(ALONE)))["adder"]
    read = 6 * 3 + 2 * 2 + 4 * 6  # words of the questions
    assert found.usage.input_tokens == read
    assert found.tokens == pytest.approx((read + 12) / 12)
    assert found.dollars == pytest.approx(read / 12)


async def test_the_best_single_worker_is_chosen_on_other_samples_than_those_of_the_test(bench: Make) -> None:
    found = await lines(bench(BEST))
    assert found["best"].description.startswith("adder, chosen on learn (n = 20)")
    assert found["best"].accuracy.value == pytest.approx(6 / 12)


async def test_calibration_on_the_test_itself_is_refused(bench: Make, folder: Path) -> None:
    made = bench(BEST)
    (folder / "learn.jsonl").write_text((folder / "test.jsonl").read_text().splitlines()[0])
    with pytest.raises(ConfigError, match=r"every question of \[calibration\] is in 'test' too"):
        await made.run()


async def test_nothing_is_learned_from_questions_of_the_test(bench: Make, folder: Path) -> None:
    made = bench(BEST)
    with (folder / "learn.jsonl").open("a") as file:
        file.write("\n" + (folder / "test.jsonl").read_text())
    assert "(n = 20)" in (await lines(made))["best"].description


async def test_a_conductor_that_plans_well_is_right_everywhere(bench: Make) -> None:
    found = (await lines(bench(PLANNED)))["planned"]
    assert (found.accuracy.value, found.valid_plans) == (1, 1)
    assert found.steps == pytest.approx((8 * 1 + 4 * 2) / 12)


async def test_plans_that_no_one_can_run_count_as_invalid_and_do_not_enter_accuracy_given_validity(bench: Make) -> None:
    found = (await lines(bench(STUMBLING)))["stumbling"]
    assert found.valid_plans == pytest.approx(8 / 12)  # four questions have a 3
    assert found.accuracy_if_valid is not None
    assert found.accuracy_if_valid.value == 1
    assert found.accuracy.value == pytest.approx((8 + 2) / 12)  # the fall-back, the adder, is right on two of the four


async def test_a_judge_that_fails_costs_a_row_and_one_that_does_not_is_paid_once(bench: Make, folder: Path) -> None:
    (folder / "judged.jsonl").write_text("\n".join(map(json.dumps, SUMS)))
    first = bench(JUDGED.format(folder=folder, judge="judge"))
    toy_results, results = (section.systems[0].results for section in await first.run())
    assert [(result.value, result.error) for result in results] == [(1, None), (0, "the judge is down"), (1, None)]
    assert first.meter.usage.calls - first.meter.usage.cached_calls == toys.calls()
    assert toys.calls("judge") == 1 + 2 + 1  # the same text in either order is asked once
    assert first.meter.usage.cost > sum(result.usage.cost for result in (*toy_results, *results))
    again = Bench(first.settings, ResultFile(folder / "again" / "rows.jsonl"))
    await again.run()
    assert toys.calls("judge") == 4 + 2  # a failure is not remembered
    assert again.meter.paid == 0


async def test_what_another_judge_scored_is_scored_anew(bench: Make, folder: Path) -> None:
    (folder / "judged.jsonl").write_text("\n".join(map(json.dumps, SUMS)))
    for judge, values in (("lenient", [1, 1, 1]), ("judge", [1, 0, 1])):
        _, section = await bench(JUDGED.format(folder=folder, judge=judge)).run()
        assert [result.value for result in section.systems[0].results] == values


@pytest.mark.parametrize(
    "learning",
    [
        '[systems.router]\nkind = "routerdc"\n',
        '[systems.router]\nkind = "masrouter"\n',
        PLANNED + '[pools.toys]\ncards = "measured"\n',
    ],
)
async def test_what_was_learned_from_other_scores_is_another_system(bench: Make, folder: Path, learning: str) -> None:
    learned = [
        json.loads(summarize) | {"scoring": "judge"} for summarize in (folder / "learn.jsonl").read_text().splitlines()
    ]
    (folder / "learn.jsonl").write_text("\n".join(map(json.dumps, learned)))
    found = []
    for judge in ("lenient", "judge", "lenient"):
        (section,) = await bench(f'{learning}[calibration.options]\njudge = "toy:{judge}"\n').run()
        found.append(section.systems[0].results)
    first, other, again = found
    assert first == again
    assert not {result.key for result in first} & {result.key for result in other}


@pytest.mark.parametrize("kind", ["best-single", "routerdc", "smoothie", "masrouter", "mixture-of-agents"])
async def test_where_every_run_failed_there_is_nothing_to_learn_from(bench: Make, folder: Path, kind: str) -> None:
    more = '[pools.toys.workers.third]\nmodel = "toy:adder"\n' + '[calibration.options]\njudge = "toy:judge"\n'
    text = json.dumps({"id": "x", "question": "add 7 1", "answer": "two", "scoring": "judge"})
    (folder / "learn.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=r"nothing .* learned from 'learn': . runs?, none .* says: the judge is down"):
        await bench(f'[systems.s]\nkind = "{kind}"\n{more}').run()


@pytest.mark.parametrize(
    ("kind", "module", "text"),
    [
        ("random", "random_plan", "PART"),
        ("mixture-of-agents", "mixture_of_agents", "SYNTHESISE"),
        ("self-reflection", "self_reflection", "VERIFY"),
        ("oracle", "oracle", "ABLE"),
        ("best-of-n", "sampling", "CHOOSE"),
    ],
)
async def test_what_was_made_by_other_texts_is_made_anew(
    bench: Make, kind: str, module: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dear = '[systems.dear]\nkind = "mixture-of-agents"\naggregator = "adder"\nlayers = 4\n'
    like = 'like = "dear"\n' if kind == "best-of-n" else ""
    systems = f'{dear}[systems.s]\nkind = "{kind}"\n{like}'
    first, same = [(await bench(systems).run())[0].systems[1] for _ in range(2)]
    assert first.results == same.results
    monkeypatch.setattr(f"rl_conductor_training.bench.systems.{module}.{text}", "Do something else.")
    other = (await bench(systems).run())[0].systems[1]
    assert not {result.key for result in first.results} & {result.key for result in other.results}


async def test_a_bench_that_was_killed_goes_on_and_pays_nothing_twice(bench: Make, folder: Path) -> None:
    half = bench(ALONE + PLANNED, concurrency=1)

    def stop(result: SampleResult, done: int, _: int) -> None:
        if result.key.system == "speller" and done == 5:
            running.cancel()

    half.on_row = stop
    running = asyncio.create_task(half.run())
    with pytest.raises(asyncio.CancelledError):
        await running
    before = toys.calls()
    assert 12 + 5 <= before <= half.meter.usage.calls <= 12 + 5 + 1  # the next call may have begun
    with (folder / "out" / "rows.jsonl").open("a") as file:
        file.write('{"key": {"pool": "toys", "ta')  # what a kill leaves
    whole = await lines(bench(ALONE + PLANNED))
    assert {name: one.runs for name, one in whole.items()} == {"adder": 12, "speller": 12, "planned": 12}
    assert toys.calls() - (before - 12 - 5) == 12 + 12 + 12 + 16
