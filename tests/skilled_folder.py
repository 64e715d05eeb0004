"""A conductor that was learned for a pool of scripted workers, and the file of its questions."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from rl_conductor.models import PROVIDERS
from rl_conductor_training.learn import LearnSettings, learn
from training.learn import skills


@dataclass(frozen=True)
class Learned:
    """The folder, and the questions that it was learned from."""

    folder: Path
    questions: Path


@pytest.fixture(scope="session")
def learned_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `pool.toml`, `questions.jsonl`, and the `learned` conductor."""
    root = tmp_path_factory.mktemp("evals")
    (root / "pool.toml").write_text(skills.POOL)
    lines = [
        sample.model_dump(include={"id", "question", "answer", "domain"}) | {"group": sample.id}
        for sample in skills.build_task(count=12).samples
    ]
    (root / "questions.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PROVIDERS, "skill", skills.PROVIDER)
        task, pool = f"jsonl:{root / 'questions.jsonl'}", root / "pool.toml"
        asyncio.run(learn(task, pool, out=root / "learned", settings=LearnSettings(max_steps=2)))
    return root


@pytest.fixture
def learned(learned_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Learned:
    """A copy of the folder; the models of its pool file exist."""
    monkeypatch.setitem(PROVIDERS, "skill", skills.PROVIDER)
    shutil.copytree(learned_once, tmp_path, dirs_exist_ok=True)
    return Learned(tmp_path / "learned", tmp_path / "questions.jsonl")
