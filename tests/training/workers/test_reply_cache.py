"""Where replies of workers are remembered."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_conductor import Planner, ScriptedModel, Worker
from rl_conductor._internal.imports import import_object
from rl_conductor.pool.pool_file import WorkerEntry
from rl_conductor_training.learn.workspace import open_workspace
from rl_conductor_training.workers.cached_model import CachedModel
from rl_conductor_training.workers.coder import CoderModel
from rl_conductor_training.workers.reply_cache import ReplyCache, cache_version


def test_a_delegating_worker_caches_the_replies_of_its_base_model_once(tmp_path: Path) -> None:
    base = ScriptedModel("print(42)", name="base")
    worker = Worker.of("coder", CoderModel(base))
    memory = ReplyCache(tmp_path / "replies.sqlite")
    entry = WorkerEntry(model="coder:base")
    for wrapped in (memory.wrap_worker(worker, entry), memory.wrap_worker(worker, entry)):
        assert isinstance(wrapped.model, CoderModel)
        assert isinstance(wrapped.model.base, CachedModel)
        assert wrapped.model.base.model is base
        assert wrapped.model.name == worker.model.name
    assert isinstance(worker.model, CoderModel)
    assert worker.model.base is base


def test_only_options_that_affect_replies_are_part_of_the_version() -> None:
    def version(**base_options: object) -> str:
        return cache_version(WorkerEntry(model="coder:base", options={"base_options": base_options}))

    assert version(engine="a", threads=1, parallel=1) == version(engine="b") == ""
    assert version(context=2048) != version(context=1024)


FUNCTION = """def answer(subtask):
    return {!r}
"""


def test_cached_replies_of_a_python_function_depend_on_its_module_and_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    one, two = tmp_path / "worker_one.py", tmp_path / "worker_two.py"
    for file in (one, two):
        file.write_text(FUNCTION.format("yes"))

    def versions() -> tuple[str, str]:
        pool = {"worker": import_object("worker_one:answer")}
        return (
            cache_version(WorkerEntry(model="worker_one:answer")),
            open_workspace(pool, Planner(model=ScriptedModel("a plan")), tmp_path).workers["worker"],
        )

    before = versions()
    assert versions() == before
    assert cache_version(WorkerEntry(model="worker_two:answer")) != before[0]
    one.write_text(FUNCTION.format("no"))
    assert all(after != version for after, version in zip(versions(), before, strict=True))
