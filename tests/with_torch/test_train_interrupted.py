"""A training that ends in the middle of its work keeps its state."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

import toy_training
from rl_conductor.cli.main import app
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor_training.train.interruption import INTERRUPTED
from rl_conductor_training.train.progress import Status
from rl_conductor_training.train.run_dir import RunDir, RunRecord
from rl_conductor_training.train.train import train

pytestmark = pytest.mark.timeout(600)


STEP_2 = Status("step 2: running plans", 0, toy_training.ROLLOUTS)


class CrashError(Exception):
    """The process ends here."""


def crashed(home: Path, *, at: str, **changed: Any) -> int:
    """Trains up to the stage `at`, and returns the number of calls that were made."""

    def crash(status: Status) -> None:
        if status.stage == at:
            raise CrashError

    pool = toy_training.pool()
    with pytest.raises(CrashError):
        train(toy_training.config(home, **changed), home / "run", pool, on_status=crash)
    return sum(len(cast(ScriptedModel, worker.model).requests) for worker in pool.values())


def test_the_spending_for_demonstrations_is_kept(tmp_path: Path) -> None:
    settings = {"questions": 1, "samples": 8, "steps": 1, "batch": 1}
    calls = crashed(tmp_path, at="warm start: supervised steps", warm_start=settings)
    assert RunDir(tmp_path / "run").read_spending().calls == calls == 8


def test_the_spending_for_demonstrations_survives_a_kill_in_those_of_second_rounds(tmp_path: Path) -> None:
    settings = {"questions": 1, "samples": 8, "steps": 1, "batch": 1, "second_rounds": 1}
    saved: list[int] = []

    def note(status: Status) -> None:
        if status.stage.startswith("warm start: running plans of"):
            saved.append(RunDir(tmp_path / "run").read_spending().calls)

    config = toy_training.config(tmp_path, warm_start=settings, **toy_training.RECURSION)
    train(config, tmp_path / "run", toy_training.pool(), last_step=1, on_status=note)
    assert saved[0] == 8


def test_the_spending_of_the_first_evaluation_is_kept(tmp_path: Path) -> None:
    questions = tmp_path / "validation.jsonl"
    questions.write_text('{"question": "What is 5 * 7?", "answer": "42", "scoring": "numeric"}\n', encoding="utf-8")
    validation = {"task": {"name": f"jsonl:{questions}"}, "rollouts": 8}
    calls = crashed(tmp_path, at=f"step 1: sampling {toy_training.ROLLOUTS} plans", validation=validation)
    assert RunDir(tmp_path / "run").read_spending().calls == calls > 0


def interrupted(home: Path, *, times: int) -> RunRecord:
    """Trains with Ctrl-C in the second step."""

    def interrupt(status: Status) -> None:
        for _ in range(times if status == STEP_2 else 0):
            signal.raise_signal(signal.SIGINT)

    config = toy_training.config(home, warm_start=None, keep={"every": 50})
    return train(config, home / "run", toy_training.pool(), on_status=interrupt)


def test_ctrl_c_ends_a_run_after_the_step_with_a_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = interrupted(tmp_path, times=1)
    assert (record.step, record.stopped) == (2, INTERRUPTED)
    checkpoint = RunDir(tmp_path / "run").latest_checkpoint()
    assert checkpoint == tmp_path / "run" / "checkpoint-2"
    assert "stopping with a checkpoint after the current step; Ctrl-C again stops at once" in caplog.messages
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    config = toy_training.config(tmp_path, warm_start=None)
    resumed = train(config, tmp_path / "run", toy_training.pool(), last_step=3)
    assert (resumed.step, resumed.stopped) == (3, "")


def test_a_second_ctrl_c_ends_a_run_at_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path, times=2)
    assert RunDir(tmp_path / "run").latest_checkpoint() is None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_command_says_after_ctrl_c_how_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "interrupting.py").write_text(
        "import os\nimport signal\nfrom contextlib import suppress\n\n\n"
        "def solve(subtask: str) -> str:\n"
        "    with suppress(FileExistsError):  # one of the calls that run at the same time\n"
        "        open('interrupted', 'x').close()\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return '42'\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    model = toy_training.config(tmp_path).model
    (tmp_path / "train.toml").write_text(
        f'model = "{model}"\n[task]\nname = "jsonl:tasks.jsonl"\n'
        '[pool.workers]\nwrong.model = "interrupting:solve"\nright.model = "interrupting:solve"\n'
        "[plan]\nexamples = 0\nmax_steps = 1\nmax_tokens = 60\n[curriculum]\nshuffle = false\n"
        '[warm_start]\nplans = "plans.jsonl"\nbatch = 8\nlearning_rate = 1e-2\n'
        "[grpo]\nsteps = 3\nquestions = 1\nrollouts = 8\nmicro_batch = 8\n",
        encoding="utf-8",
    )
    run = CliRunner().invoke(app, ["train", "train.toml", "--out", "run"])
    assert run.exit_code == 130, run.output
    assert "1 of 3 steps done" in run.stdout
    assert "Stopped early: Ctrl-C. The same command resumes the run." in run.stdout
    run = CliRunner().invoke(app, ["train", "train.toml", "--out", "run"])
    assert run.exit_code == 0, run.output
    assert "3 of 3 steps done" in run.stdout
