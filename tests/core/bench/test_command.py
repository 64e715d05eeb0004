from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from core.bench.test_runner import ALONE, BEST, PLANNED
from rl_conductor.bench.runner import Bench
from rl_conductor.cli.main import app


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


def test_an_unknown_system_is_named(bench: Callable[..., Bench], folder: Path) -> None:
    bench(ALONE)
    said = CliRunner().invoke(app, ["bench", str(folder / "bench.toml"), "--system", "nobody"])
    assert said.exit_code == 2
    assert "no system 'nobody': the bench file has alone" in said.stderr
