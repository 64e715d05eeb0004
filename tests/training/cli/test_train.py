from __future__ import annotations

import re
import sys
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
from rl_conductor_training.train.config import TrainConfig, read_config
from rl_conductor_training.train.rollouts.masked import MaskedPlans
from rl_conductor_training.train.run_dir import RunDir, RunRecord, Spending
from rl_conductor_training.train.setup import TrainingSetup
from rl_conductor_training.workers.reply_cache import ReplyCache

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


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("[pool.small]", '[pool]\nfile = "pool.toml"'), "pool.toml' is wrong: workers.a.planer"),
        (("[pool.small]", '[pool.workers.a]\nmodel = "openai:a"'), "set OPENAI_API_KEY"),
        (("composite:train", "jsonl:empty.jsonl"), "task 'empty' has no samples"),
        (("[pool.small]", '[pool.small]\n[curriculum.cards]\nnobody = ["x"]'), "curriculum.cards names nobody"),
        (("[pool.small]", '[pool.small]\n[keep]\nreport_to = ["wandb"]'), "pip install wandb"),
    ],
)
def test_a_mistake_is_told_before_torch_is_imported(
    cli: Cli, config: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], problem: str
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    (config.parent / "pool.toml").write_text('[workers.a]\nmodel = "openai:a"\nplaner = 1\n', encoding="utf-8")
    (config.parent / "empty.jsonl").touch()
    config.write_text(CONFIG.replace(*change), encoding="utf-8")
    result = cli("train", str(config), "--out", str(config.parent / "run"))
    assert result.exit_code == 2
    assert problem in result.stderr
    assert not (config.parent / "run").exists()


@pytest.mark.parametrize(
    ("folder", "problem"),
    [
        ("train.toml", "train.toml' is a file; name a folder with --out"),
        ("train.toml/run", "run': '[^']*train.toml' is a file"),
    ],
)
def test_an_unusable_folder_is_told_before_torch_is_imported(
    cli: Cli, config: Path, monkeypatch: pytest.MonkeyPatch, folder: str, problem: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    result = cli("train", str(config), "--out", str(config.parent / folder))
    assert result.exit_code == 2
    assert re.search(problem, result.stderr)


@pytest.mark.parametrize("remember", [True, False])
def test_a_folder_of_runs_that_cannot_be_written_to_is_named_where_it_has_the_cache(
    cli: Cli, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remember: bool
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    config.write_text(CONFIG.replace("[pool.small]", f"[pool]\nsmall = {{}}\nremember = {str(remember).lower()}"))
    runs = tmp_path / "runs"
    (runs / "run").mkdir(parents=True)
    monkeypatch.setattr("os.access", lambda path, _mode: path != runs)  # no permission would keep out root
    output = cli("train", str(config), "--out", str(runs / "run")).output
    assert (f"no permission to write in {str(runs)!r}" in " ".join(output.split())) == remember


@pytest.mark.parametrize("changed", ["settings of seed", "workers: 'b' is new", "questions"])
def test_a_run_with_other_inputs_is_told_before_torch_is_imported(
    cli: Cli, config: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    folder = config.parent
    worker = '[workers.{}]\nmodel = "openai:a"\noptions = {{ base_url = "http://127.0.0.1:9" }}\n'
    text = 'model = "m"\n[task]\nname = "jsonl:questions.jsonl"\n[pool]\nfile = "pool.toml"\n'
    config.write_text(text, encoding="utf-8")
    (folder / "pool.toml").write_text(worker.format("a"), encoding="utf-8")
    (folder / "questions.jsonl").write_text('{"question": "What is 1 + 1?", "answer": "2"}\n', encoding="utf-8")
    _begin_run(folder / "run", read_config(config))
    match changed:
        case "questions":
            (folder / "questions.jsonl").write_text('{"question": "1 + 2?", "answer": "3"}\n', encoding="utf-8")
        case "workers: 'b' is new":
            (folder / "pool.toml").write_text(worker.format("a") + worker.format("b"), encoding="utf-8")
        case _:
            config.write_text(f"seed = 1\n{text}", encoding="utf-8")
    result = cli("train", str(config), "--out", str(folder / "run"))
    assert result.exit_code == 2
    assert f"run' has a run with other {changed}" in result.stderr


def _begin_run(folder: Path, config: TrainConfig) -> None:
    """Writes the files of a run in which a worker was called."""
    run, pool = RunDir.open(folder, config), config.pool.build(ReplyCache(None))
    run.write_workers(pool, config.pool.reply_options)
    run.write_questions(*TrainingSetup(config, pool).load_questions())
    run.write_spending(Spending(calls=1))


def test_the_estimate_needs_no_torch_and_calls_nobody(cli: Cli, config: Path, tmp_path: Path) -> None:
    workers = '[pool.workers.one]\nmodel = "openai:one"\noptions = { base_url = "http://127.0.0.1:9" }\n'
    priced = "price = { input = 1, output = 2 }\n"
    text = f'model = "m"\n[task]\nname = "composite:train"\n{workers}{priced}[grpo]\nsteps = 2\nrollouts = 4\n'
    config.write_text(text, encoding="utf-8")
    result = cli("train", str(config), "--estimate", "--out", str(tmp_path / "run"))
    assert result.exit_code == 0, result.output
    assert "expected of the workers: about 96 calls" in result.stderr
    assert not (tmp_path / "run").exists()
