from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rl_conductor.cli.main import app
from rl_conductor_training.bench.runner import Bench
from rl_conductor_training.cli.bench import show_progress
from training.bench.test_runner import ALONE, BEST, PLANNED


def test_the_command_prints_a_table_and_writes_rows_and_reports(
    bench: Callable[..., Bench], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    bench(ALONE + BEST + PLANNED, against=["best"])
    said = CliRunner().invoke(app, ["bench", str(folder / "bench.toml"), "--limit", "8", "--out", str(folder / "told")])
    assert said.exit_code == 0, said.output
    assert re.search(r"^planned +1\.00 ± 0\.00 +100% +1\.00 ± 0\.00", said.stdout, re.MULTILINE)
    assert len((folder / "told" / "rows.jsonl").read_text().splitlines()) == 8 * 4 + 20 * 2
    for form in ("md", "html"):
        text = (folder / "told" / f"report.{form}").read_text()
        for fact in ("n = 8", "seed", "rl-conductor", "toy", "calls", "Python 3."):
            assert fact in text


def test_a_report_needs_nothing_from_elsewhere(bench: Callable[..., Bench], folder: Path) -> None:
    bench(ALONE + BEST + PLANNED, against=["best"])
    CliRunner().invoke(app, ["bench", str(folder / "bench.toml"), "--out", str(folder / "told")])
    html = (folder / "told" / "report.html").read_text()
    assert html.count("<svg") >= 3
    assert not re.search(r"<(script|link|img|iframe|object)\b|\bsrc=|url\(\s*['\"]?(?!#)|@import", html)
    assert all(address.startswith("#") for address in re.findall(r'href="([^"]*)"', html))


async def test_ctrl_c_says_what_was_spent_and_how_to_go_on(
    bench: Callable[..., Bench], capsys: pytest.CaptureFixture[str]
) -> None:
    made = bench(ALONE, concurrency=1)

    async def interrupted() -> None:
        with show_progress(made):
            await made.run()
            raise KeyboardInterrupt

    with pytest.raises(typer.Exit) as ended:
        await interrupted()
    assert ended.value.exit_code == 130
    said = " ".join(capsys.readouterr().err.split())
    assert "stopped; 24 calls, 116 tokens, $92.00 paid; the same command resumes from" in said
    assert len(made.results.path.read_text().splitlines()) == 24


def test_what_came_from_the_cache_is_counted(bench: Callable[..., Bench], folder: Path) -> None:
    bench(ALONE)
    said = [
        CliRunner().invoke(app, ["bench", str(folder / "bench.toml"), "--out", str(folder / out)]).stderr
        for out in ("first", "again")
    ]
    assert "24 calls, 116 tokens, $92.00 paid; the report is in" in said[0]
    assert "24 calls (24 of them from the cache), 116 tokens, $0 paid; the report is in" in said[1]


def test_a_budget_ends_the_command_with_what_to_do(bench: Callable[..., Bench], folder: Path) -> None:
    bench(ALONE, concurrency=1)
    said = CliRunner().invoke(
        app, ["bench", str(folder / "bench.toml"), "--budget", "5", "--out", str(folder / "told")]
    )
    assert said.exit_code == 1
    assert "the budget of $5.00 is spent; the same command with a larger one goes on from here" in said.stderr
    assert len((folder / "told" / "rows.jsonl").read_text().splitlines()) == 2


def test_an_unknown_system_is_named(bench: Callable[..., Bench], folder: Path) -> None:
    bench(ALONE)
    said = CliRunner().invoke(app, ["bench", str(folder / "bench.toml"), "--system", "nobody"])
    assert said.exit_code == 2
    assert "no system 'nobody': the bench file has alone" in said.stderr
