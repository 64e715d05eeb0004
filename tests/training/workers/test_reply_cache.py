"""The cache of workers' replies."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_conductor import Planner, ScriptedModel, Worker
from rl_conductor._internal.imports import import_object
from rl_conductor.models import model as find_model
from rl_conductor.pool.pool_file import WorkerEntry
from rl_conductor_training.learn.data import add_judge_version
from rl_conductor_training.learn.workspace import open_workspace
from rl_conductor_training.tasks import Sample, Task
from rl_conductor_training.tasks.scorers.judge import Judge
from rl_conductor_training.workers.cached_model import CachedModel
from rl_conductor_training.workers.coder import CoderModel
from rl_conductor_training.workers.reply_cache import ReplyCache, cache_version, object_version


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


MODEL = """from rl_conductor import Model
from rl_conductor.types import Completion, Message


class Own(Model):
    name = "own:model"

    async def complete(self, request):
        return Completion(message=Message.assistant({!r}), model=self.name)
"""


def test_the_version_of_a_model_of_a_users_class_depends_on_the_source_of_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "model_of_a_user.py"
    module.write_text(MODEL.format("yes"))
    model = import_object("model_of_a_user:Own")()
    before = object_version(model)
    cached = CachedModel(model, tmp_path / "replies.sqlite")
    assert object_version(cached) == object_version(CoderModel(cached)) == before
    module.write_text(MODEL.format("no"))
    assert object_version(model) != before
    assert object_version(ScriptedModel("yes")) == ""


def test_a_planner_or_judge_at_another_address_is_another_one(tmp_path: Path) -> None:
    def versions(**options: object) -> tuple[str, dict[str, object]]:
        model = find_model("openai:local", api_key="none", **options)
        samples = (Sample(id="1", question="?", answer="!", details={"judge": model.name}),)
        judged = add_judge_version(Task("judged", samples, Judge(model)), model)
        return open_workspace(
            {"a": ScriptedModel("a")}, Planner(model=model), tmp_path
        ).planner_version, judged.samples[0].details

    first, other = versions(base_url="http://127.0.0.1:1/v1"), versions(base_url="http://127.0.0.1:2/v1")
    assert first == versions(base_url="http://127.0.0.1:1/v1")
    assert first[0] != other[0]
    assert first[1] != other[1]
    assert versions() == ("", {"judge": "openai:local"})
