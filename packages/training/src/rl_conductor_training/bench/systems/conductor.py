"""A Conductor, prompted or trained, with or without recursion (arXiv 2512.04388)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl_conductor.models import Model
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.model_entry import ModelEntry
from rl_conductor.pool.pool_file import PLAN_TIMEOUT, PlannerSettings
from rl_conductor.types import Sampling
from rl_conductor.workflow.limits import Limits
from rl_conductor_training.bench.context import BenchContext
from rl_conductor_training.bench.systems.base import Reply, System, SystemEntry
from rl_conductor_training.tasks import Sample
from rl_conductor_training.workers.reply_cache import cache_version


class ConductorSystem(PlannerSettings, SystemEntry):
    """Plans over the pool with a model; a trained one needs the prompt settings of its training."""

    kind: Literal["conductor"]
    planner: ModelEntry
    """The planning model: any model, or a trained one (a checkpoint, or `options` with an adapter)."""
    rounds: int = Field(default=1, ge=1)
    """Maximum number of rounds; 2 is the paper's recursion."""
    steps: int = Field(default=5, ge=1)
    samples: int = Field(default=5, ge=1)
    """Maximum number of plans sampled until one is valid; only the first counts for the share of valid plans."""
    temperature: float = Field(default=0.0, ge=0)
    timeout: float = Field(default=PLAN_TIMEOUT, gt=0, exclude_if=lambda seconds: seconds == PLAN_TIMEOUT)
    """Seconds for one attempt at a plan; a slower one is rejected."""

    async def build(self, name: str, context: BenchContext) -> list[System]:
        """Builds the system over the planner's model."""
        model = context.build_model(self.planner)

        async def answer(sample: Sample, repeat: int) -> Reply:
            planner = self._planner(model, context.seed + repeat)
            limits = Limits(rounds=self.rounds, steps=self.steps)
            trace = await context.run(
                sample.question, repeat=repeat, planner=planner, limits=limits, access=self.access
            )
            return Reply.from_trace(trace)

        rounds = "" if self.rounds == 1 else f", {self.rounds} rounds"
        constraint = "under the plan grammar" if model.capabilities.grammar else "without a grammar"
        description = f"{model.name} plans {constraint}{rounds} (arXiv 2512.04388)"
        return [
            System(
                name=name, description=description, identity=self.identity + cache_version(self.planner), answer=answer
            )
        ]

    def _planner(self, model: Model, seed: int) -> Planner:
        is_random = self.temperature > 0  # a greedy model would repeat the same plan
        sampling = Sampling(
            max_tokens=self.max_tokens, temperature=self.temperature, seed=seed * self.samples if is_random else None
        )
        return Planner(
            model=model,
            form=self.form,
            roster=self.roster,
            wording=self.wording,
            examples=self.examples,
            samples=self.samples if is_random else 1,
            sampling=sampling,
            timeout=self.timeout,
        )
