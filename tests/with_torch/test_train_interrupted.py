"""What a training keeps that ends in the middle of its work."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

import toy_training
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor_training.train.progress import Status
from rl_conductor_training.train.run_dir import RunDir
from rl_conductor_training.train.train import train

pytestmark = pytest.mark.timeout(600)


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


def test_the_spending_of_the_first_evaluation_is_kept(tmp_path: Path) -> None:
    questions = tmp_path / "validation.jsonl"
    questions.write_text('{"question": "What is 5 * 7?", "answer": "42", "scoring": "numeric"}\n', encoding="utf-8")
    validation = {"task": {"name": f"jsonl:{questions}"}, "rollouts": 8}
    calls = crashed(tmp_path, at=f"step 1: sampling {toy_training.ROLLOUTS} plans", validation=validation)
    assert RunDir(tmp_path / "run").read_spending().calls == calls > 0
