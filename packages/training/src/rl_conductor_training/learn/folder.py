"""Writes the folder of a learned conductor: `conductor.toml` and the files that it names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import tomlkit

from rl_conductor._internal.io import write_text
from rl_conductor._internal.jsonl import write_lines, write_value
from rl_conductor.config.learned_folder import (
    ADAPTER_OPTIONS,
    CONDUCTOR_FILE,
    DOMAIN_FILE,
    EXAMPLES_FILE,
    OPENING_FILE,
    SELECTOR_FILE,
    ConductorFile,
    fingerprint_worker,
)
from rl_conductor.planning.planner import Planner
from rl_conductor.planning.routing.domain import Domain
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.pool_file import PlannerEntry
from rl_conductor.prompting.prompt_version import prompt_version
from rl_conductor_training.learn.production.stored_runs import RUNS_FILE


@dataclass(frozen=True, kw_only=True)
class LearnedSystem:
    """The result of a learner, as the folder stores it."""

    method: str
    """Name of the learner."""
    planner: Planner
    """The prompted planner; its own examples are stored."""
    selector: WorkflowSelector | None = None
    instructions: str = ""
    descriptions: Mapping[str, str] | None = None
    """Learned descriptions of workers."""
    weights: PlannerEntry | None = None
    """The trained planner."""
    domain: Domain | None = None
    """The domain of the trained planner."""
    questions: Collection[str] = ()
    """Hashes of the questions that were learned from."""


def copy_for_estimate(folder: Path, copy: Path) -> None:
    """Copies the files that decide how the questions of a folder are split, so that an estimate does not change it."""
    copy.mkdir(exist_ok=True)
    openings = folder.glob(f"{Path(OPENING_FILE).stem}*.json")
    for path in (*openings, folder / RUNS_FILE):
        if path.is_file():
            shutil.copy2(path, copy)


def write_conductor_folder(
    folder: Path, learned: LearnedSystem, pool: WorkerPool, pool_file: Path | None = None
) -> None:
    """Writes the folder; the fingerprints are those of `pool`, to which the learned descriptions are not applied.

    Raises:
        ConfigError: a file can't be written.
    """
    examples = () if isinstance(learned.planner.examples, int) else learned.planner.examples
    for name, value in ((SELECTOR_FILE, learned.selector), (DOMAIN_FILE, learned.domain)):
        write_value(folder / name, value) if value else (folder / name).unlink(missing_ok=True)
    write_lines(folder / EXAMPLES_FILE, examples) if examples else (folder / EXAMPLES_FILE).unlink(missing_ok=True)
    file = ConductorFile(
        method=learned.method,
        pool=None if pool_file is None else Path(_relative(pool_file, folder)),
        planner=learned.planner.model.name,
        instructions=learned.instructions,
        descriptions=dict(learned.descriptions or {}),
        examples=Path(EXAMPLES_FILE) if examples else None,
        selector=Path(SELECTOR_FILE) if learned.selector else None,
        weights=learned.weights and _with_relative_adapter(learned.weights, folder),
        domain=Path(DOMAIN_FILE) if learned.domain else None,
        prompts=prompt_version(),
        workers={name: fingerprint_worker(worker) for name, worker in pool.items()},
    )
    content = {"format": file.format, **file.model_dump(mode="json", exclude_defaults=True)}
    content["questions"] = sorted(learned.questions)
    write_text(folder / CONDUCTOR_FILE, f"# Written by rl-conductor learn.\n{tomlkit.dumps(content)}")


def _with_relative_adapter(weights: PlannerEntry, folder: Path) -> PlannerEntry:
    """Returns the entry with the adapter's path relative to the folder."""
    paths = {name: _relative(path, folder) for name, path in weights.options.items() if name in ADAPTER_OPTIONS}
    return weights.model_copy(update={"options": weights.options | paths})


def _relative(path: str | Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()
