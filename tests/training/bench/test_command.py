from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rl_conductor.cli.main import app
from rl_conductor_training.bench.runner import Bench
from rl_conductor_training.cli.bench import show_progress
from training.bench.toy_systems import ALONE, BEST, PLANNED


def test_the_command_prints_a_table_and_writes_rows_and_reports(
    bench: Callable[..., Bench], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    bench(ALONE + BEST + PLANNED, against=["best"])
    result = CliRunner().invoke(
        app, ["bench", str(folder / "bench.toml"), "--limit", "8", "--out", str(folder / "told")]
    )
    assert result.exit_code == 0, result.output
    assert re.search(r"^planned +1\.00 ± 0\.00 +100% +1\.00 ± 0\.00", result.stdout, re.MULTILINE)
    assert len((folder / "told" / "rows.jsonl").read_text().splitlines()) == 8 * 4 + 20 * 2
    for form in ("md", "html"):
        text = (folder / "told" / f"report.{form}").read_text()
        for fact in ("n = 8", "seed", "rl-conductor", "toy", "calls", "Python 3."):
            assert fact in text


def test_a_report_loads_nothing_from_other_sites(bench: Callable[..., Bench], folder: Path) -> None:
    bench(ALONE + BEST + PLANNED, against=["best"])
    CliRunner().invoke(app, ["bench", str(folder / "bench.toml"), "--out", str(folder / "told")])
    html = (folder / "told" / "report.html").read_text()
    assert html.count("<svg") >= 3
    assert not re.search(r"<(script|link|img|iframe|object)\b|\bsrc=|url\(\s*['\"]?(?!#)|@import", html)
    assert all(address.startswith("#") for address in re.findall(r'href="([^"]*)"', html))


def test_the_remarks_of_the_report_are_printed(bench: Callable[..., Bench], folder: Path) -> None:
    """The judge of the questions says neither yes nor no."""
    lines = [{"question": f"add {n} 1", "answer": str(n + 1), "scoring": "judge"} for n in range(12)]
    (folder / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    bench(ALONE)
    config = folder / "bench.toml"
    config.write_text(config.read_text().replace("[calibration]", 'options = { judge = "toy:adder" }\n[calibration]'))
    result = CliRunner().invoke(app, ["bench", str(config), "--out", str(folder / "told")])
    assert "The judge gave no clear verdict on 24 of 24 runs, which count as wrong" in result.stdout, result.output


def test_the_most_frequent_problem_of_invalid_plans_is_printed(bench: Callable[..., Bench], folder: Path) -> None:
    """The adder, asked for a plan, replies with a number."""
    bench('[systems.prompted]\nkind = "conductor"\nplanner = { model = "toy:adder" }\n')
    result = CliRunner().invoke(app, ["bench", str(folder / "bench.toml"), "--out", str(folder / "told")])
    remark = r"The first plan of prompted was not valid as written in 12 of 12 runs, most often \(\d+\) because: \S+"
    assert re.search(remark, " ".join(result.stdout.split())), result.output
    assert re.search(remark, (folder / "told" / "report.md").read_text())


async def test_ctrl_c_prints_the_usage_and_how_to_resume(
    bench: Callable[..., Bench], capsys: pytest.CaptureFixture[str]
) -> None:
    bench_run = bench(ALONE, concurrency=1)

    async def interrupted() -> None:
        with show_progress(bench_run):
            await bench_run.run()
            raise KeyboardInterrupt

    with pytest.raises(typer.Exit) as ended:
        await interrupted()
    assert ended.value.exit_code == 130
    output = " ".join(capsys.readouterr().err.split())
    assert "interrupted; 24 calls, 116 tokens, $92.00 paid; the same command resumes from" in output
    assert len(bench_run.results.path.read_text().splitlines()) == 24


def test_replies_that_were_cut_off_are_printed_and_in_the_reports(bench: Callable[..., Bench], folder: Path) -> None:
    bench('[systems.alone]\nkind = "alone"\n[pools.toys.workers.cutter]\nmodel = "toy:cutter"\n')
    command = ["bench", str(folder / "bench.toml"), "--out", str(folder / "told")]
    for output in (CliRunner().invoke(app, command).stdout, CliRunner().invoke(app, command).stdout):
        assert "Replies that were cut off" in output
        assert re.search(r"^cutter .*12 of 12 \(100%\)", output, re.MULTILINE)
    for form in ("md", "html"):
        assert "12 of 12 (100%)" in (folder / "told" / f"report.{form}").read_text()


def test_cached_calls_are_counted(bench: Callable[..., Bench], folder: Path) -> None:
    bench(ALONE)
    outputs = [
        CliRunner().invoke(app, ["bench", str(folder / "bench.toml"), "--out", str(folder / out)]).stderr
        for out in ("first", "again")
    ]
    assert "24 calls, 116 tokens, $92.00 paid; the report is in" in outputs[0]
    assert "24 calls (24 of them from the cache), 116 tokens, $0 paid; the report is in" in outputs[1]


def test_a_spent_budget_ends_the_command_with_a_hint(bench: Callable[..., Bench], folder: Path) -> None:
    bench(ALONE, concurrency=1)
    result = CliRunner().invoke(app, ["bench", str(folder / "bench.toml"), "--usd", "5", "--out", str(folder / "told")])
    assert result.exit_code == 1
    assert "the budget of $5.00 is spent; the same command with a larger one goes on from here" in result.stderr
    assert len((folder / "told" / "rows.jsonl").read_text().splitlines()) == 2


def test_an_unknown_system_is_named(bench: Callable[..., Bench], folder: Path) -> None:
    bench(ALONE)
    result = CliRunner().invoke(app, ["bench", str(folder / "bench.toml"), "--system", "nobody"])
    assert result.exit_code == 2
    assert "no system 'nobody': the bench file has alone" in result.stderr
