"""A Conductor: prompted, trained, with or without recursion (arXiv 2512.04388). Which it is depends on its model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl_conductor.bench.arena import Arena
from rl_conductor.bench.systems.base import Reply, System, SystemEntry
from rl_conductor.limits import Limits
from rl_conductor.models import Model
from rl_conductor.planner import Planner
from rl_conductor.pool import ModelEntry, PlanManner
from rl_conductor.tasks import Sample
from rl_conductor.types import Sampling
from rl_conductor.workers.source import version_of


class Conducting(PlanManner, SystemEntry):
    """A model that writes plans over the pool. A trained one must be asked as it was trained."""

    kind: Literal["conductor"]
    planner: ModelEntry
    """Any model: prompted as it is, or trained to plan (a checkpoint, or `options` that name an adapter)."""
    rounds: int = Field(default=1, ge=1)
    """2 is the paper's recursion."""
    steps: int = Field(default=5, ge=1)
    samples: int = Field(default=5, ge=1)
    """Most plans that are drawn until one may run; only the first counts for the share of valid plans."""
    temperature: float = Field(default=0.0, ge=0)

    async def ready(self, name: str, arena: Arena) -> list[System]:
        """The system."""
        model = arena.model(self.planner)

        async def answer(sample: Sample, repeat: int) -> Reply:
            planner = self._planner(model, arena.seed + repeat)
            limits = Limits(rounds=self.rounds, steps=self.steps)
            trace = await arena.run(sample.question, repeat=repeat, planner=planner, limits=limits, access=self.access)
            return Reply.of(trace)

        rounds = "" if self.rounds == 1 else f", {self.rounds} rounds"
        held = "under the plan grammar" if model.capabilities.grammar else "without a grammar"
        about = f"{model.name} plans {held}{rounds} (arXiv 2512.04388)"
        return [System(name=name, about=about, identity=self.identity + version_of(self.planner), answer=answer)]

    def _planner(self, model: Model, seed: int) -> Planner:
        draws = self.temperature > 0  # a greedy model would only write the same plan again
        sampling = Sampling(
            max_tokens=self.max_tokens, temperature=self.temperature, seed=seed * self.samples if draws else None
        )
        return Planner(
            model=model,
            form=self.form,
            roster=self.roster,
            examples=self.examples,
            samples=self.samples if draws else 1,
            sampling=sampling,
        )
