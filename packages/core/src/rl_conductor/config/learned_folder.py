"""Loads the learned conductors that `rl-conductor learn` writes: folders of `conductor.toml` and the files it names."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from rl_conductor._internal.jsonl import read_lines, read_value
from rl_conductor._internal.toml import read_toml
from rl_conductor.config.discovered_pool import DiscoveredPool, from_file
from rl_conductor.errors import ConfigError
from rl_conductor.models import Model
from rl_conductor.planning.planner import Planner
from rl_conductor.planning.routing.domain import Domain
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor.pool.pool import AnyWorker, WorkerPool
from rl_conductor.pool.pool_file import PlannerEntry, PoolFile, read_pool_file
from rl_conductor.pool.worker import Worker
from rl_conductor.prompting.prompt_version import prompt_version
from rl_conductor.workflow.example import PlanExample

log = logging.getLogger("rl_conductor")

CONDUCTOR_FILE = "conductor.toml"
SELECTOR_FILE = "selector.json"
EXAMPLES_FILE = "examples.jsonl"
DOMAIN_FILE = "domain.json"
EXPERIENCE_FILE = "experience.jsonl"
"""The score of each workflow on each question, in JSON Lines."""
OPENING_FILE = "heldout.json"
"""The questions that were held out, once they were opened."""
RELEARN = "run the same rl-conductor learn command again, which repeats no paid call"
ADAPTER_OPTIONS = ("adapter", "lora")
"""Options of a trained planner that are paths relative to the folder."""


class ConductorFile(BaseModel):
    """The content of `conductor.toml`."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    format: int = Field(default=1, ge=1, le=1)
    method: str = ""
    """The learned system, such as `linear` or `fixed`."""
    pool: Path | None = None
    """Path of the pool file, relative to the folder; `None` if the pool was built in Python."""
    planner: str = ""
    """The planner's model, as `provider:name`; it comes from the pool file."""
    instructions: str = ""
    """Instructions for the planner, in addition to those of the pool file."""
    descriptions: dict[str, str] = Field(default_factory=dict)
    """Learned descriptions of workers for the planner, which replace those of their cards."""
    examples: Path | None = None
    """File with the planner's worked examples, relative to the folder."""
    selector: Path | None = None
    """File with the fixed workflow, or the classifier among workflows, relative to the folder."""
    weights: PlannerEntry | None = None
    """The trained planner, which replaces that of the pool file; its adapter is relative to the folder."""
    domain: Path | None = None
    """File with the domain of the trained planner, relative to the folder; the pool file's plans other requests."""
    questions: frozenset[str] = frozenset()
    """Hashes of the questions that it learned from, which a bench leaves out."""
    prompts: str = ""
    """Version of the prompt templates at the time of learning."""
    workers: dict[str, str] = Field(default_factory=dict)
    """Fingerprint of each worker at the time of learning."""


def load_folder(
    folder: str | Path,
    *,
    pool: WorkerPool | Mapping[str, AnyWorker] | None = None,
    planner: Planner | Model | str | None = None,
) -> DiscoveredPool:
    """Loads a learned conductor for `pool`, by default that of the pool file that it was learned for.

    A `planner`, as for `Planner.of`, replaces the pool file's, and a trained one.

    Raises:
        ConfigError: a file is missing or invalid, or the conductor was learned for a pool that was built in Python.
    """
    planner = None if planner is None else Planner.of(planner)
    content = read_conductor_file(Path(folder))
    source = f"the learned conductor {str(folder)!r} ({content.method})"
    if pool is None:
        discovered = from_file(_read_own_pool(content, folder), f"using {source}", planner=planner)
    else:
        pool = pool if isinstance(pool, WorkerPool) else WorkerPool(pool)
        general = planner or Planner.from_pool(pool)
        discovered = DiscoveredPool(planner=general, pool=pool, reasons=(f"using {source}",))
    if content.weights is not None and planner is None:
        trained = _trained_planner(content.weights, content.domain, discovered.planner)
        limits = discovered.limits.model_copy(update={"steps": content.weights.steps})
        discovered = replace(discovered, planner=trained, limits=limits, access=content.weights.access)
    planner, selector = _apply_conductor_file(content, discovered.planner, discovered.pool, source)
    described = describe_workers(discovered.pool, content.descriptions)
    return replace(discovered, pool=described, planner=planner, selector=selector)


def fingerprint_worker(worker: Worker) -> str:
    """Hashes the model, card, instructions and sampling of a worker, 16 hex digits."""
    setup = worker.setup.model_dump(mode="json")
    return hashlib.sha256(json.dumps(setup, sort_keys=True).encode()).hexdigest()[:16]


def list_pool_changes(content: ConductorFile, pool: WorkerPool) -> list[str]:
    """Describes how the pool and the prompts differ from those of the time of learning; empty if they don't."""
    changes = [f"worker {name!r} is missing" for name in content.workers if name not in pool]
    changes += [f"worker {name!r} is new" for name in pool if name not in content.workers]
    changes += [
        f"worker {name!r} has changed"
        for name, worker in pool.items()
        if content.workers.get(name, expected := fingerprint_worker(worker)) != expected
    ]
    if content.prompts and content.prompts != prompt_version():
        changes.append("the prompts have changed")
    return changes


def describe_workers(pool: WorkerPool, descriptions: Mapping[str, str]) -> WorkerPool:
    """Returns the pool with learned descriptions on the cards; names that it lacks are ignored."""
    if not descriptions:
        return pool
    return WorkerPool(
        replace(worker, card=worker.card.model_copy(update={"description": descriptions[name]}))
        if name in descriptions
        else worker
        for name, worker in pool.items()
    )


def read_conductor_file(folder: Path) -> ConductorFile:
    """Reads `conductor.toml`, with the paths resolved against the folder.

    Raises:
        ConfigError: it does not exist or is invalid.
    """
    if not (folder / CONDUCTOR_FILE).is_file():
        if (folder / EXPERIENCE_FILE).is_file():
            raise ConfigError(
                f"{str(folder)!r} has results, but no {CONDUCTOR_FILE}: learning did not finish; {RELEARN}, with "
                "higher caps if one ended it"
            )
        raise ConfigError(
            f"{str(folder)!r} is not the folder of a learned conductor: it has no {CONDUCTOR_FILE}; "
            "create one with rl-conductor learn QUESTIONS.jsonl --pool POOL.toml --out FOLDER"
        )
    content = read_toml(folder / CONDUCTOR_FILE, ConductorFile, "conductor file")
    for name in ("examples", "selector", "domain"):
        path = getattr(content, name)
        if path is not None and not (folder / path).is_file():
            raise ConfigError(f"{str(folder)!r} has no {path}, which {CONDUCTOR_FILE} names: {RELEARN}")
    changes: dict[str, Any] = {
        name: folder / path for name in ("pool", "examples", "selector", "domain") if (path := getattr(content, name))
    }
    if content.weights is not None:
        options = content.weights.options
        paths = {name: str(folder / options[name]) for name in ADAPTER_OPTIONS if name in options}
        changes["weights"] = content.weights.model_copy(update={"options": options | paths})
    return content.model_copy(update=changes)


def _read_own_pool(content: ConductorFile, folder: str | Path) -> PoolFile:
    """Reads the pool file that the conductor was learned for.

    Raises:
        ConfigError: it was learned for a pool that was built in Python, or the file is missing or invalid.
    """
    if content.pool is None:
        raise ConfigError(
            f"{str(folder)!r} was learned for a pool that was built in Python: load it with "
            "Conductor.load(folder, pool=pool)"
        )
    if not content.pool.is_file():
        raise ConfigError(
            f"{str(folder)!r} was learned for the pool file {str(content.pool)!r}, which is not there: if one of "
            f"them was moved, change pool = ... in {CONDUCTOR_FILE}; the path is relative to the folder"
        )
    return read_pool_file(content.pool)


def _trained_planner(weights: PlannerEntry, domain: Path | None, general: Planner) -> Planner:
    """Returns the trained planner, which leaves requests outside of its domain to `general`.

    Raises:
        ConfigError: the model does not exist, or the domain's file can't be read.
    """
    planner = Planner.from_entry(weights)
    return planner if domain is None else replace(planner, domain=read_value(domain, Domain), general=general)


def _apply_conductor_file(
    content: ConductorFile, planner: Planner, pool: WorkerPool, source: str
) -> tuple[Planner, WorkflowSelector | None]:
    """Returns the planner with its learned examples and instructions, and the selector of learned workflows.

    A pool that has changed since is logged as a warning.

    Raises:
        ConfigError: a file can't be read, or the pool lacks a worker of the learned workflows.
    """
    if changes := list_pool_changes(content, pool):
        log.warning(
            "%s was learned for another pool (%s), so its results may no longer hold; run rl-conductor learn again",
            source,
            "; ".join(changes),
        )
    if content.examples is not None:
        planner = replace(planner, examples=tuple(read_lines(content.examples, PlanExample)))
    if content.instructions:
        planner = replace(planner, instructions="\n".join(filter(None, (planner.instructions, content.instructions))))
    selector = None if content.selector is None else read_value(content.selector, WorkflowSelector, cure=RELEARN)
    if selector is not None:
        selector.check_pool(pool)
    return planner, selector
