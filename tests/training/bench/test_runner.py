from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_conductor import ConfigError
from rl_conductor_training.bench.results import ResultFile, SampleResult
from rl_conductor_training.bench.runner import Bench
from training.bench import toys
from training.bench.toy_systems import ALONE, BEST, PLANNED, lines

Make = Callable[..., Bench]

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


async def test_each_worker_alone_is_right_within_its_skill(bench: Make) -> None:
    rows = await lines(bench(ALONE))
    assert rows["adder"].accuracy.value == pytest.approx(6 / 12)
    assert rows["speller"].accuracy.value == pytest.approx(2 / 12)
    assert rows["adder"].accuracy_by_depth[2].value == 0
    assert (rows["adder"].steps, rows["adder"].valid_plans, rows["adder"].accuracy_if_valid) == (1, None, None)


async def test_tokens_and_dollars_match_the_models_usage(bench: Make) -> None:
    row = (await lines(bench(ALONE)))["adder"]
    read = 6 * 3 + 2 * 2 + 4 * 6  # words of the questions
    assert row.usage.input_tokens == read
    assert row.tokens == pytest.approx((read + 12) / 12)
    assert row.dollars == pytest.approx(read / 12)


async def test_the_best_single_worker_is_chosen_on_calibration_samples(bench: Make) -> None:
    rows = await lines(bench(BEST))
    assert rows["best"].description.startswith("adder, chosen on learn (n = 20)")
    assert rows["best"].accuracy.value == pytest.approx(6 / 12)


async def test_calibration_on_the_test_itself_is_refused(bench: Make, folder: Path) -> None:
    bench_run = bench(BEST)
    (folder / "learn.jsonl").write_text((folder / "test.jsonl").read_text().splitlines()[0])
    with pytest.raises(ConfigError, match=r"every question of \[calibration\] is in 'test' too"):
        await bench_run.run()


async def test_test_questions_are_excluded_from_calibration(bench: Make, folder: Path) -> None:
    bench_run = bench(BEST)
    with (folder / "learn.jsonl").open("a") as file:
        file.write("\n" + (folder / "test.jsonl").read_text().replace("add ", " Add  "))
    assert "(n = 20)" in (await lines(bench_run))["best"].description


async def test_a_conductor_that_plans_well_is_right_everywhere(bench: Make) -> None:
    row = (await lines(bench(PLANNED)))["planned"]
    assert (row.accuracy.value, row.valid_plans) == (1, 1)
    assert row.steps == pytest.approx((8 * 1 + 4 * 2) / 12)


async def test_invalid_plans_are_left_out_of_accuracy_given_validity(bench: Make) -> None:
    row = (await lines(bench(STUMBLING)))["stumbling"]
    assert row.valid_plans == pytest.approx(8 / 12)  # four questions have a 3
    assert row.accuracy_if_valid is not None
    assert row.accuracy_if_valid.value == 1
    assert row.accuracy.value == pytest.approx((8 + 2) / 12)  # the fall-back, the adder, is right on two of the four


async def test_a_plan_that_takes_longer_than_its_timeout_is_not_valid(bench: Make) -> None:
    entry = '[systems.slow]\nkind = "conductor"\nplanner = { model = "toy:ponderer" }\ntimeout = 0.01\n'
    row = (await lines(bench(entry)))["slow"]
    assert row.valid_plans == 0
    assert row.accuracy.value == pytest.approx(6 / 12)  # of the adder, the fallback


async def test_a_failed_judge_fails_a_row_and_a_working_one_is_paid_once(bench: Make, folder: Path) -> None:
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
    assert again.meter.paid.cost == 0


async def test_another_judge_scores_everything_again(bench: Make, folder: Path) -> None:
    (folder / "judged.jsonl").write_text("\n".join(map(json.dumps, SUMS)))
    for judge, values in (("lenient", [1, 1, 1]), ("judge", [1, 0, 1])):
        _, section = await bench(JUDGED.format(folder=folder, judge=judge)).run()
        assert [result.value for result in section.systems[0].results] == values


async def test_the_judge_may_be_a_file_beside_the_bench_file_and_another_model_in_it_scores_again(
    bench: Make, folder: Path
) -> None:
    (folder / "judged.jsonl").write_text("\n".join(map(json.dumps, SUMS)))
    settings = JUDGED.format(folder=folder, judge="judge").replace("toy:judge", "judge.toml")
    for judge, values in (("lenient", [1, 1, 1]), ("judge", [1, 0, 1])):
        (folder / "judge.toml").write_text(f'model = "toy:{judge}"\nprice = {{ input = 1000, output = 0 }}\n')
        made = bench(settings)
        _, section = await made.run()
        assert [result.value for result in section.systems[0].results] == values
        assert f"toy:{judge}" in made.settings.models


@pytest.mark.parametrize(
    "learning",
    [
        '[systems.router]\nkind = "routerdc"\n',
        '[systems.router]\nkind = "masrouter"\n',
        PLANNED + '[pools.toys]\ncards = "measured"\n',
    ],
)
async def test_other_calibration_scores_make_another_system(bench: Make, folder: Path, learning: str) -> None:
    learned = [
        json.loads(summarize) | {"scoring": "judge"} for summarize in (folder / "learn.jsonl").read_text().splitlines()
    ]
    (folder / "learn.jsonl").write_text("\n".join(map(json.dumps, learned)))
    runs = []
    for judge in ("lenient", "judge", "lenient"):
        (section,) = await bench(f'{learning}[calibration.options]\njudge = "toy:{judge}"\n').run()
        runs.append(section.systems[0].results)
    first, other, again = runs
    assert first == again
    assert not {result.key for result in first} & {result.key for result in other}


@pytest.mark.parametrize("kind", ["best-single", "routerdc", "smoothie", "masrouter", "mixture-of-agents"])
async def test_calibration_without_answers_is_rejected(bench: Make, folder: Path, kind: str) -> None:
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
        ("oracle", "workflow_list", "ABLE"),
        ("best-of-n", "sampling", "CHOOSE"),
    ],
)
async def test_other_prompts_invalidate_results(
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


async def test_a_killed_bench_resumes_and_pays_nothing_twice(bench: Make, folder: Path) -> None:
    half = bench(ALONE + PLANNED, concurrency=1)

    def stop(result: SampleResult, count: int, _: int) -> None:
        if result.key.system == "speller" and count == 5:
            running.cancel()

    half.on_row = stop
    running = asyncio.create_task(half.run())
    with pytest.raises(asyncio.CancelledError):
        await running
    before = toys.calls()
    assert 12 + 5 <= before <= half.meter.usage.calls <= 12 + 5 + 1  # the next call may have begun
    with (folder / "out" / "rows.jsonl").open("a") as file:
        file.write('{"key": {"pool": "toys", "ta')  # what a kill leaves
    rows = await lines(bench(ALONE + PLANNED))
    assert {name: row.runs for name, row in rows.items()} == {"adder": 12, "speller": 12, "planned": 12}
    assert toys.calls() - (before - 12 - 5) == 12 + 12 + 12 + 16
