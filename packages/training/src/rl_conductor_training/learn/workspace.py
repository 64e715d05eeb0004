"""The folder of a learning run, and the pool and planner with replies cached in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rl_conductor._internal.jsonl import write_value
from rl_conductor.agents import DelegatingModel
from rl_conductor.conductor import Conductor
from rl_conductor.config.discovered_pool import from_file
from rl_conductor.models import Model
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.function_model import FunctionModel
from rl_conductor.pool.pool import AnyWorker, WorkerPool
from rl_conductor.pool.pool_file import read_pool_file
from rl_conductor.pool.worker import Worker
from rl_conductor.workflow.plan_space import AccessMode
from rl_conductor_training.learn.data import LearnData
from rl_conductor_training.learn.experience import fingerprint_workers
from rl_conductor_training.learn.folder import LearnedSystem, write_conductor_folder
from rl_conductor_training.learn.learners.base import Learner
from rl_conductor_training.learn.learners.prompted import PromptedPlanner
from rl_conductor_training.learn.record import LearnRecord
from rl_conductor_training.learn.report import write_report
from rl_conductor_training.learn.runner import add_call_seconds
from rl_conductor_training.routing.domain import has_chains, task_domain
from rl_conductor_training.tasks.groups import hash_question
from rl_conductor_training.workers.cached_model import CachedModel
from rl_conductor_training.workers.compact import CompactModel
from rl_conductor_training.workers.reply_cache import cache_version, object_version

REPLIES_FILE = "replies.sqlite"

Pool = WorkerPool | Mapping[str, AnyWorker] | Path | str


@dataclass(frozen=True)
class Workspace:
    """The folder, and the pool and planner with replies cached there."""

    folder: Path
    pool_file: Path | None
    conductor: Conductor
    workers: Mapping[str, str]
    """Fingerprints of the workers."""
    planner_version: str
    """The settings of the planner's model that its name does not show, such as its options."""

    @property
    def notes(self) -> list[str]:
        """Remarks on workers that are Python functions: in a chain, subtasks don't have the question."""
        models = {name: getattr(worker.model, "model", None) for name, worker in self.conductor.pool.items()}
        functions = {name: model for name, model in models.items() if isinstance(model, FunctionModel)}
        blind = ", ".join(name for name, function in functions.items() if not function.reads_question)
        if not blind:
            return []
        return [f"{blind} can't see the question in a chain; give the function a parameter called 'question'"]

    def write(self, record: LearnRecord, learners: Sequence[Learner], data: LearnData) -> None:
        """Writes the conductor of the recommended learner, the record and the report.

        Learned workflows of several steps and trained planners get the domain of the task's questions.
        """
        data.heldout.archive_other_opening()
        by_name = {learner.name: learner for learner in learners}
        learner = by_name.get(record.recommended) or PromptedPlanner(self.conductor)
        conductor, weights = learner.apply(self.conductor), learner.planner_entry
        selector = conductor.config.selector
        domain = None
        if weights is not None or (selector is not None and has_chains(selector)):
            domain = task_domain(data.task.samples, data.groups)
        learned = LearnedSystem(
            method=record.recommended,
            planner=conductor.planner,
            selector=selector and selector.model_copy(update={"domain": domain}),
            instructions=learner.instructions,
            descriptions=learner.descriptions,
            weights=weights,
            domain=domain if weights else None,
            questions={hash_question(sample.question) for sample in (*data.train.samples, *data.validation.samples)},
        )
        write_conductor_folder(self.folder, learned, self.conductor.pool, self.pool_file)
        write_value(self.folder / "record.json", record)
        write_report(record, self.folder / "report.html")


def open_workspace(pool: Pool, planner: Planner | Model | str | None, folder: Path) -> Workspace:
    """Opens the folder of a learning run, with a pool that caches its replies there."""
    planner = None if planner is None else Planner.of(planner)
    pool_file: Path | None = None
    versions: dict[str, str] = {}
    planner_version = "" if planner is None else object_version(planner.model)
    access: AccessMode = "binary"
    if isinstance(pool, str | Path):
        pool_file = Path(pool)
        content = read_pool_file(pool_file)
        discovered = from_file(content, "", planner=planner)
        versions = {name: cache_version(entry) for name, entry in content.workers.items()}
        if content.planner is not None and planner is None:
            planner_version = cache_version(content.planner)
        pool, planner, access = discovered.pool, discovered.planner, discovered.access
    workers = pool if isinstance(pool, WorkerPool) else WorkerPool(pool)
    versions = versions or {name: object_version(worker.model) for name, worker in workers.items()}
    planner = planner or Planner.from_pool(workers)
    for name, worker in workers.items():
        if worker.model is planner.model:
            planner_version = versions.get(name, "")
    path = folder / REPLIES_FILE
    cached = WorkerPool(_cache_worker(worker, path, versions.get(name, "")) for name, worker in workers.items())
    version = f"planner {planner_version}".rstrip()
    planner = replace(planner, model=CachedModel(planner.model, path, version=version, on_reply=add_call_seconds))
    conductor = Conductor(planner, cached, access=access, keep_prompts=False)
    return Workspace(folder, pool_file, conductor, fingerprint_workers(cached, versions), planner_version)


def _cache_worker(worker: Worker, path: Path, version: str) -> Worker:
    """Caches the replies of a worker; of a delegating one, the replies of its base model only.

    The base model's replies are cached by its shortened prompts, so that more of them are equal.
    """
    if isinstance(worker.model, DelegatingModel):
        base = worker.model.base
        if isinstance(base, CompactModel):
            cached: Model = CompactModel(CachedModel(base.model, path, version=version, on_reply=add_call_seconds))
        else:
            cached = CachedModel(base, path, version=version, on_reply=add_call_seconds)
        return replace(worker, model=worker.model.with_base(cached))
    return replace(
        worker, model=CachedModel(worker.model, path, version=f"{worker.name} {version}", on_reply=add_call_seconds)
    )
