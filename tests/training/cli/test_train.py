from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import Result

from rl_conductor_training.cli.train import _print_result
from rl_conductor_training.cut_off_replies import CutOffReplies
from rl_conductor_training.train.rollouts.masked import MaskedPlans
from rl_conductor_training.train.run_dir import RunRecord, Spending

Cli = Callable[..., Result]

CONFIG = 'model = "m"\n[task]\nname = "composite:train"\n[pool.small]\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "train.toml"
    file.write_text(CONFIG, encoding="utf-8")
    return file


def printed(record: RunRecord, folder: Path) -> str:
    out = Console(file=StringIO(), width=200)
    _print_result(out, record, folder)
    assert isinstance(out.file, StringIO)
    return out.file.getvalue()


def test_the_result_shows_what_the_whole_run_has_spent_in_plain_numbers(tmp_path: Path) -> None:
    spending = Spending(usd=Decimal("1.5"), tokens=1_560_271, calls=9)
    record = RunRecord(config={"grpo": {"steps": 4}}, versions={}, machine="CPU", step=2, spending=spending)
    text = "The workers of the whole run used $1.50, 1,560,271 tokens, 9 calls, without cached replies.\n"
    assert text in printed(record, tmp_path)


def test_the_result_says_which_part_of_the_spending_is_an_upper_bound(tmp_path: Path) -> None:
    spending = Spending(usd=Decimal("1.5"), tokens=9_000, calls=9, unanswered_usd=Decimal(1), unanswered_tokens=4_096)
    record = RunRecord(config={"grpo": {"steps": 4}}, versions={}, machine="CPU", step=2, spending=spending)
    bounds = "(of this, $1.00 and 4,096 tokens are the most that failed and interrupted calls can have taken)"
    assert f"$1.50, 9,000 tokens, 9 calls, without cached replies {bounds}.\n" in printed(record, tmp_path)


def test_the_result_says_which_plans_were_left_out(tmp_path: Path) -> None:
    masked = MaskedPlans.of(["step 1, a: it is down"])
    record = RunRecord(config={"grpo": {"steps": 4}}, versions={}, machine="CPU", step=2, masked=masked)
    assert f"This call: {masked.text}.\n" in printed(record, tmp_path)


def test_the_result_says_whose_replies_were_cut_off(tmp_path: Path) -> None:
    cut_off = (CutOffReplies(worker="a", reason="content_filter", cut_off=1, replies=2),)
    record = RunRecord(config={"grpo": {"steps": 4}}, versions={}, machine="CPU", step=2, cut_off=cut_off)
    assert "This call: 1 of 2 (50%) replies of a were cut off" in printed(record, tmp_path)


@pytest.mark.skipif(find_spec("trl") is not None, reason="the extra is installed")
def test_a_missing_extra_is_reported_with_its_install_command(cli: Cli, config: Path) -> None:
    result = cli("train", str(config))
    assert result.exit_code == 2
    assert "pip install 'rl-conductor-training[train]'" in result.stderr


def test_a_mistake_in_the_file_is_told_before_anything_is_loaded(cli: Cli, config: Path) -> None:
    config.write_text(f"{CONFIG}[grpo]\nrollouts = 1\n", encoding="utf-8")
    result = cli("train", str(config))
    assert result.exit_code == 2
    assert "grpo.rollouts: write a number greater than or equal to 2" in result.stderr


def test_the_estimate_needs_no_torch_and_calls_nobody(cli: Cli, config: Path, tmp_path: Path) -> None:
    workers = '[pool.workers.one]\nmodel = "openai:one"\noptions = { base_url = "http://127.0.0.1:9" }\n'
    priced = "price = { input = 1, output = 2 }\n"
    text = f'model = "m"\n[task]\nname = "composite:train"\n{workers}{priced}[grpo]\nsteps = 2\nrollouts = 4\n'
    config.write_text(text, encoding="utf-8")
    result = cli("train", str(config), "--estimate", "--out", str(tmp_path / "run"))
    assert result.exit_code == 0, result.output
    assert "expected of the workers: about 96 calls" in result.stderr
    assert not (tmp_path / "run").exists()
