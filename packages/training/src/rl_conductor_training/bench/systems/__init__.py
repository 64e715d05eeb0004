"""The systems that a bench compares, one module per method; `AnySystem` validates a `[systems.NAME]` table.

In: settings and a `BenchContext`. Out: `System`s, which answer samples and report their runs.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rl_conductor_training.bench.systems.conductor import ConductorSystem
from rl_conductor_training.bench.systems.fixed_workflow import FixedWorkflow, Rules
from rl_conductor_training.bench.systems.learned import LearnedConductor
from rl_conductor_training.bench.systems.linear import Linear
from rl_conductor_training.bench.systems.mixture_of_agents import MixtureOfAgents
from rl_conductor_training.bench.systems.oracle import Oracle
from rl_conductor_training.bench.systems.random_plan import RandomPlan
from rl_conductor_training.bench.systems.routers.masrouter import MasRouter
from rl_conductor_training.bench.systems.routers.routerdc import RouterDC
from rl_conductor_training.bench.systems.routers.smoothie import Smoothie
from rl_conductor_training.bench.systems.sampling import BestOfN, SelfConsistency
from rl_conductor_training.bench.systems.self_reflection import SelfReflection
from rl_conductor_training.bench.systems.single_model import BestSingle, SingleModel

AnySystem = Annotated[
    SingleModel
    | BestOfN
    | BestSingle
    | ConductorSystem
    | FixedWorkflow
    | LearnedConductor
    | Linear
    | MasRouter
    | MixtureOfAgents
    | Oracle
    | RandomPlan
    | RouterDC
    | Rules
    | SelfConsistency
    | SelfReflection
    | Smoothie,
    Field(discriminator="kind"),
]

__all__ = ["AnySystem"]
