"""A conductor that `rl-conductor learn` wrote, over the pool of the bench."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from rl_conductor._internal.jsonl import read_value
from rl_conductor.config.learned_folder import (
    CONDUCTOR_FILE,
    DOMAIN_FILE,
    EXAMPLES_FILE,
    RELEARN,
    SELECTOR_FILE,
    load_folder,
    read_conductor_file,
)
from rl_conductor.errors import ConfigError
from rl_conductor.planning.planner import Planner
from rl_conductor.planning.routing.domain import Domain
from rl_conductor.pool.pool_file import PlannerEntry
from rl_conductor.workflow.limits import Limits
from rl_conductor_training.bench.context import BenchContext
from rl_conductor_training.bench.systems.base import Reply, System, SystemEntry
from rl_conductor_training.tasks import Sample
from rl_conductor_training.workers.reply_cache import cache_version

DEFAULT_STEPS = 5


class LearnedConductor(SystemEntry):
    """Loads the folder of a learned conductor; the pool needs the workers that it was learned for."""

    kind: Literal["learned"]
    folder: Path
    """Path of the folder, relative to the working directory."""
    planner: PlannerEntry | None = None
    """The prompted planner, for questions without a learned workflow; by default the first worker that can plan."""
    steps: int | None = Field(default=None, ge=1)
    """Maximum steps of a plan; by default those of the trained planner, or 5."""

    async def build(self, name: str, context: BenchContext) -> list[System]:
        """Loads the learned conductor with the workers of the bench.

        Raises:
            ConfigError: a file of it is missing or invalid, or the pool lacks a worker of the learned workflows.
        """
        content = read_conductor_file(self.folder)
        prompted = None if self.planner is None else self._planner(self.planner, context)
        entry, planner = content.weights or self.planner, prompted
        if content.weights is not None:
            planner = self._planner(content.weights, context)
            if content.domain is not None:
                general = prompted or Planner.from_pool(context.pool)
                planner = replace(planner, domain=read_value(content.domain, Domain), general=general)
        learned = load_folder(self.folder, pool=context.pool, planner=planner)
        steps = self.steps or (content.weights.steps if content.weights else DEFAULT_STEPS)

        async def answer(sample: Sample, repeat: int) -> Reply:
            trace = await context.run(
                sample.question,
                repeat=repeat,
                planner=learned.planner,
                selector=learned.selector,
                pool=learned.pool,
                limits=Limits(steps=steps),
                access=learned.access if entry is None else entry.access,
            )
            return Reply.from_trace(trace)

        identity = self.identity + self._content_hash() + ("" if entry is None else cache_version(entry))
        return [System(name=name, description=learned.reasons[0], identity=identity, answer=answer)]

    @staticmethod
    def _planner(entry: PlannerEntry, context: BenchContext) -> Planner:
        return Planner.from_entry(entry, model=context.build_model(entry))

    def learned_questions(self) -> frozenset[str]:
        """Returns the hashes of the questions that `learn` did not hold out for its proof.

        Raises:
            ConfigError: the folder is not that of a learned conductor, or does not name the questions.
        """
        questions = read_conductor_file(self.folder).questions
        if not questions:
            raise ConfigError(f"{str(self.folder)!r} does not say which questions it learned from: {RELEARN}")
        return questions

    def _content_hash(self) -> str:
        """Hashes the files that the folder is loaded from, apart from an adapter."""
        files = [self.folder / name for name in (CONDUCTOR_FILE, DOMAIN_FILE, EXAMPLES_FILE, SELECTOR_FILE)]
        return hashlib.sha256(b"\0".join(path.read_bytes() for path in files if path.is_file())).hexdigest()
