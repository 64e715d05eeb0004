"""The systems, a family a file; `AnySystem` is what a `[systems.NAME]` table may hold."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rl_conductor.bench.systems.alone import Alone, BestSingle
from rl_conductor.bench.systems.chance import RandomPlans
from rl_conductor.bench.systems.conducting import Conducting
from rl_conductor.bench.systems.mixture import MixtureOfAgents
from rl_conductor.bench.systems.oracle import Oracle
from rl_conductor.bench.systems.reflecting import SelfReflection
from rl_conductor.bench.systems.routers.masrouter import MasRouter
from rl_conductor.bench.systems.routers.routerdc import RouterDC
from rl_conductor.bench.systems.routers.smoothie import Smoothie
from rl_conductor.bench.systems.sampling import BestOfN, SelfConsistency

AnySystem = Annotated[
    Alone
    | BestOfN
    | BestSingle
    | Conducting
    | MasRouter
    | MixtureOfAgents
    | Oracle
    | RandomPlans
    | RouterDC
    | SelfConsistency
    | SelfReflection
    | Smoothie,
    Field(discriminator="kind"),
]

__all__ = ["AnySystem"]
