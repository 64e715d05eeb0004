"""The models that this server offers: each a conductor under limits of its own, by a name and by a pinned one."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time
from functools import cached_property

from rl_conductor._internal.version import package_version
from rl_conductor.conductor import Conductor
from rl_conductor.config.discovery import DiscoveredPool
from rl_conductor.config.profiles import MINI, ULTRA
from rl_conductor.errors import ConfigError
from rl_conductor.execution.prompt_version import prompt_version
from rl_conductor.planning.router import Router
from rl_conductor_server.errors import ApiError
from rl_conductor_server.settings import ProfileEntry
from rl_conductor_server.store import Side

OWN = {"conductor-mini": (MINI, date(2026, 11, 21)), "conductor-ultra": (ULTRA, date(2026, 11, 21))}
"""Our own two, and when what is behind them was last changed."""


@dataclass(frozen=True)
class Served:
    """A model of ours."""

    name: str
    """Follows the newest release."""
    released: date
    conductor: Conductor
    side: Side | None = None
    """Of the route that has this name; `None` when it is a model of its own."""
    other: Conductor | None = field(default=None, compare=False)
    """The route's other side."""

    @property
    def sides(self) -> Sequence[Conductor]:
        """Whoever might answer under its name, itself first."""
        return (self.conductor,) if self.other is None else (self.conductor, self.other)

    @property
    def pinned(self) -> str:
        """The name that means this release and no other."""
        return f"{self.name}-{self.released.isoformat()}"

    @property
    def created(self) -> int:
        """When it was released, in seconds since 1970."""
        return int(datetime.combine(self.released, time(), UTC).timestamp())

    @cached_property
    def fingerprint(self) -> str:
        """Of what decides its answers: code, prompts, limits, planner, tiers and pool."""
        made = self.conductor
        parts = [package_version(), prompt_version(), made.limits.model_dump_json(), made.planner.model.name]
        parts += [made.access, made.planner.setup.model_dump_json(exclude={"can"})]  # which may become known only later
        parts += [made.tiers.sha256] if made.tiers else []
        parts += [
            f"{worker.name} {worker.model.name} {worker.sampling.model_dump_json()}" for worker in made.pool.values()
        ]
        return f"fp_{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:12]}"


class Catalogue:
    """All of them."""

    def __init__(self, served: Collection[Served]) -> None:
        self._served = {name: one for one in served for name in (one.name, one.pinned)}

    def __iter__(self) -> Iterator[Served]:
        return iter(dict.fromkeys(self._served.values()))

    def named(self, name: str) -> Served:
        """The one of this name, pinned or not.

        Raises:
            ApiError: there is none.
        """
        if name not in self._served:
            known = ", ".join(one.name for one in self)
            raise ApiError(f"no model {name!r}; there are {known}", status=404, code="model_not_found", param="model")
        return self._served[name]

    async def aclose(self) -> None:
        """Close every model behind them."""
        for one in self:
            await one.conductor.aclose()


def catalogue(found: DiscoveredPool, entries: dict[str, ProfileEntry]) -> Catalogue:
    """Our own two and those of the settings, over the pool that was found.

    Raises:
        ConfigError: an entry takes one of our names, or its policy lets nothing run.
    """
    taken = sorted(OWN.keys() & entries.keys())
    if taken:
        raise ConfigError(f"profiles.{taken[0]}: this name is taken; choose another, such as {taken[0]}-house")
    own = [
        Served(name, released, Conductor.from_discovered(found, profile=profile, name=name))
        for name, (profile, released) in OWN.items()
    ]
    return Catalogue(own + [_from_entry(name, entry, found) for name, entry in entries.items()])


def _from_entry(name: str, entry: ProfileEntry, found: DiscoveredPool) -> Served:
    own = replace(found, tiers=Router.read(entry.tiers)) if entry.tiers else found
    usual = Conductor.from_discovered(own, profile=entry.base, policy=entry.policy, name=name)
    written = {limit: getattr(entry.limits, limit) for limit in entry.limits.model_fields_set}
    return Served(name, entry.released, usual.replaced(limits=usual.limits.model_copy(update=written)))
