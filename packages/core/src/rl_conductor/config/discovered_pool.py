"""`DiscoveredPool`: the configuration of a conductor that was found on this machine, and why it was selected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from rl_conductor.config.conductor_config import ConductorConfig
from rl_conductor.config.profiles import Profile, profile_named
from rl_conductor.guardrails.base import Guardrail
from rl_conductor.guardrails.loading import build_guardrails
from rl_conductor.planning.planner import Planner
from rl_conductor.planning.routing.router import Router
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.pool_file import PoolFile
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.plan_space import AccessMode
from rl_conductor.workflow.policy import Policy


@dataclass(frozen=True, kw_only=True)
class DiscoveredPool(ConductorConfig):
    """The configuration of a conductor that was discovered, and the reasons why it was selected."""

    reasons: tuple[str, ...] = ()
    """Sentences for the user that explain the selection."""
    economy_planner: Planner | None = None
    """A quicker planner, for profiles that prefer cheap and fast workers."""
    embedded: bool = False
    """`True` if nothing else was found, so that the tiny embedded models are used."""

    def with_planner(self, planner: Planner) -> Self:
        """Returns a copy in which `planner` writes all plans."""
        return replace(self, planner=planner, economy_planner=None)

    def with_instructions(self, instructions: str) -> Self:
        """Returns a copy in which every planner has these instructions."""
        return self.map_planners(lambda planner: planner.with_instructions(instructions))

    def map_planners(self, change: Callable[[Planner], Planner]) -> Self:
        """Returns a copy with `change` applied to every planner."""
        economy_planner = self.economy_planner and change(self.economy_planner)
        return replace(self, planner=change(self.planner), economy_planner=economy_planner)

    def with_profile(self, profile: Profile | str | None) -> Self:
        """Returns a copy for a profile or the built-in one of this name, if any.

        The profile orders the workers and sets the limits, but plans get no more steps than the present limits allow.

        Raises:
            ConfigError: there is no profile of this name.
        """
        if profile is None:
            return self
        profile = profile_named(profile) if isinstance(profile, str) else profile
        planner = (profile.economy and self.economy_planner) or self.planner
        pool, limits = profile.ordered(self.pool), profile.within(self.limits)
        return replace(self, planner=planner, pool=pool, limits=limits)

    def with_settings(
        self,
        *,
        profile: Profile | str | None = None,
        policy: Policy | None = None,
        limits: Limits | None = None,
        rounds: int | None = None,
        retries: int | None = None,
        access: AccessMode | None = None,
        instructions: str = "",
        guardrails: Sequence[Guardrail] | None = None,
        name: str | None = None,
    ) -> Self:
        """Returns a copy with the given settings; the others stay as they are.

        Args:
            profile: as for `with_profile`.
            policy: replaces the policy.
            limits: replaces the limits, also those of the profile.
            rounds: replaces `limits.rounds`.
            retries: replaces the maximum number of retries of a call that failed with a transient error.
            access: replaces the access mode.
            instructions: for plans; replace those of every planner.
            guardrails: replace those of the pool file.
            name: replaces the conductor's name as a model.

        Raises:
            ConfigError: there is no profile of this name.
        """
        config = self.with_instructions(instructions) if instructions else self
        config = config.with_profile(profile).replaced(policy=policy, limits=limits)
        return config.replaced(
            limits=None if rounds is None else config.limits.model_copy(update={"rounds": rounds}),
            retries=retries,
            access=access,
            guardrails=guardrails,
            name=name,
        )


def from_file(content: PoolFile, reason: str, *, planner: Planner | None = None) -> DiscoveredPool:
    """Builds the pool of a pool file; without `[planner]`, the first worker that can plan is also the planner.

    A `planner` replaces the file's.

    Raises:
        ConfigError: an entry is invalid, or there is no planner and no worker can plan.
    """
    pool = WorkerPool(content.build())
    router = None if content.router is None else Router.read(content.router)
    guardrails = build_guardrails(content.guardrails)
    entry, reasons = content.planner, [reason]
    if planner is None:
        planner = Planner.from_pool(pool) if entry is None else Planner.from_entry(entry)
        source = "its first language model is also the planner" if entry is None else "using its planner"
        reasons.append(f"{source}: {planner.model.name}")
    discovered = DiscoveredPool(
        planner=planner, pool=pool, router=router, guardrails=guardrails, reasons=tuple(reasons)
    )
    return discovered if entry is None else replace(discovered, limits=Limits(steps=entry.steps), access=entry.access)
