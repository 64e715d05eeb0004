"""Where replies of workers are remembered."""

from __future__ import annotations

from pathlib import Path

from rl_conductor import ScriptedModel, Worker
from rl_conductor.models.cached import CachedModel
from rl_conductor.pool.pool_file import WorkerEntry
from rl_conductor_training.workers.coder import CoderModel
from rl_conductor_training.workers.source import ReplyCache


def test_a_worker_with_a_base_model_is_left_as_it_is_and_its_base_remembers_once(tmp_path: Path) -> None:
    base = ScriptedModel("print(42)", name="base")
    given = Worker.of("coder", CoderModel(base))
    memory = ReplyCache(tmp_path / "replies.sqlite")
    entry = WorkerEntry(model="coder:base")
    for kept in (memory.wrap_worker(given, entry), memory.wrap_worker(given, entry)):
        assert isinstance(kept.model, CoderModel)
        assert isinstance(kept.model.base, CachedModel)
        assert kept.model.base.model is base
        assert kept.model.name == given.model.name
    assert isinstance(given.model, CoderModel)
    assert given.model.base is base
