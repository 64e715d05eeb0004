"""Routes: names behind which two can answer, the model that always has and the conductor that may take its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property

from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConfigError
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.pool_file import PoolFile, WorkerEntry
from rl_conductor.scoring import Scorer
from rl_conductor.workflow.limits import Limits
from rl_conductor_server.catalog import Catalogue, Served
from rl_conductor_server.errors import ApiError
from rl_conductor_server.experiments.judge import scorer_named
from rl_conductor_server.settings import RouteEntry
from rl_conductor_server.store import Side


@dataclass(frozen=True)
class Route:
    """One of them."""

    entry: RouteEntry
    incumbent: Served
    conductor: Served
    judge: Served | None
    scorer: Scorer | None

    @property
    def name(self) -> str:
        """Follows the newest release."""
        return self.incumbent.name

    @property
    def pinned(self) -> str:
        """Under this name it is tried."""
        return self.incumbent.pinned

    @cached_property
    def sides(self) -> Mapping[Side, Served]:
        """Who answers on which side."""
        return {"incumbent": self.incumbent, "conductor": self.conductor}


class Routes(Mapping[str, Route]):
    """All of them, by name."""

    def __init__(self, entries: Mapping[str, RouteEntry], catalogue: Catalogue) -> None:
        """Routes to models of this catalogue.

        Raises:
            ConfigError: a name is taken, or a route names what is not there.
        """
        self._routes = {name: _route(name, entry, catalogue) for name, entry in entries.items()}
        self.catalogue = Catalogue([*catalogue, *(route.incumbent for route in self._routes.values())])
        """Every model by its name, each route by its incumbent."""

    def __getitem__(self, name: str) -> Route:
        return self._routes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._routes)

    def __len__(self) -> int:
        return len(self._routes)

    def named(self, name: str) -> Route:
        """The route of this name.

        Raises:
            ApiError: there is none.
        """
        if name not in self._routes:
            known = ", ".join(self._routes) or "none"
            raise ApiError(f"no route {name!r}; there are {known}", status=404, code="route_not_found")
        return self._routes[name]

    def on(self, side: Side | None, served: Served) -> Served:
        """Who answers on this side, where `served` is a route."""
        route = self._routes.get(served.name)
        return served if route is None or side is None else route.sides[side]

    async def aclose(self) -> None:
        """Close every model behind them and the catalogue."""
        for route in self._routes.values():
            if route.judge is not None:
                await route.judge.conductor.aclose()
        await self.catalogue.aclose()


def _route(name: str, entry: RouteEntry, catalogue: Catalogue) -> Route:
    known = {one.name: one for one in catalogue}
    if name in known:
        raise ConfigError(f"routes.{name}: this name is taken; choose another")
    if entry.conductor not in known:
        raise ConfigError(f"routes.{name}: no model {entry.conductor!r} of ours; there are {', '.join(known)}")
    shadow = entry.shadow
    incumbent = _alone(name, "incumbent", entry.incumbent, entry.released)
    conductor = replace(known[entry.conductor], name=name, released=entry.released, side="conductor")
    made = Route(
        entry=entry,
        incumbent=replace(incumbent, other=conductor.conductor),
        conductor=replace(conductor, other=incumbent.conductor),
        judge=_alone(name, None, shadow.judge, entry.released) if shadow and shadow.judge else None,
        scorer=scorer_named(shadow.scorer) if shadow and shadow.scorer else None,
    )
    if shadow and shadow.usd is not None:
        _check_prices(made)
    return made


def _check_prices(route: Route) -> None:
    """Raise `ConfigError` where dollars can't be counted: every shadow would be refused."""
    for served in filter(None, (route.incumbent, route.conductor, route.judge)):
        made = served.conductor
        for model in (made.planner.model, *(worker.model for worker in made.pool.values())):
            if model.price is None:
                raise ConfigError(
                    f"routes.{route.name}.shadow.usd can't be kept, as the price of {model.name} is unknown: give it a "
                    "price, or write tokens in place of usd"
                )


def _alone(name: str, side: Side | None, entry: WorkerEntry, released: date) -> Served:
    """A model as it is: a pool of one and plans of one step, which nobody has to write."""
    pool = WorkerPool(PoolFile(workers={side or "judge": entry}).build())
    (worker,) = pool.values()
    conductor = Conductor(worker.model, pool, limits=Limits(steps=1, rounds=1), name=name)
    return Served(name, released, conductor, side)
