"""Canaries: which requests of a route the conductor answers, and the end of that once a guard is broken.

How far a canary is stands in the store, so that a restart does not forget it and every replica sees it within a few
seconds. Who asks stays on one side: a conversation does not change hands because somebody draws lots for each turn.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping

from rl_conductor.errors import PolicyError
from rl_conductor_server.experiments.experiment import Route
from rl_conductor_server.experiments.guards import broken
from rl_conductor_server.metrics import Metrics
from rl_conductor_server.protocol import Ask
from rl_conductor_server.store import Canary, Side, Store

log = logging.getLogger("rl_conductor_server")

USER = ("safety_identifier", "user")
"""Labels that name who asks."""


class Canaries:
    """Those of all routes."""

    def __init__(self, routes: Mapping[str, Route], store: Store, metrics: Metrics) -> None:
        self._routes = {route.pinned: route for route in routes.values()}
        self._trials = store.trials
        self._metrics = metrics
        self._known: dict[str, Canary] = {}

    async def begin(self) -> None:
        """Start where the settings say, or where it was left."""
        for route in self._routes.values():
            await self._trials.configure(route.pinned, route.entry.canary.percent)
        await self.refresh()

    async def refresh(self) -> None:
        """Learn what other processes and people have set, and end what breaks a guard."""
        if not self._routes:
            return
        for canary in await self._trials.canaries():
            if canary.route in self._routes:
                self._learn(await self._guarded(canary) if canary.percent else canary)

    async def set(self, route: Route, percent: float, reason: str) -> Canary:
        """Let the conductor answer this share from now on."""
        canary = await self._trials.set(route.pinned, percent, reason)
        assert canary is not None, "every route begins with one"
        self._learn(canary)
        return canary

    def of(self, route: Route) -> Canary:
        """How far it is, as far as this process knows."""
        return self._known[route.pinned]

    def side(self, route: Route, account: str, ask: Ask) -> Side:
        """Who answers; a request that the conductor can't take at all stays with the incumbent."""
        percent = self._known[route.pinned].percent
        if not percent or place(route.name, asker(account, ask)) >= percent:
            return "incumbent"
        try:
            route.conductor.conductor.check(ask.request)
        except PolicyError:
            return "incumbent"
        return "conductor"

    async def _guarded(self, canary: Canary) -> Canary:
        guards = self._routes[canary.route].entry.canary.guards
        answers = await self._trials.answers(canary, most=guards.window)
        pairs = await self._trials.pairs(canary.route, since=canary.since, most=guards.window)
        why = broken(guards, answers, [pair.verdict for pair in pairs])
        if why is None:
            return canary
        ended = await self._trials.roll_back(canary, f"rolled back: {why}")
        if ended is None:  # another process was first: the next look shows what it did
            return canary
        log.error("the canary of %s ends at %g %%: %s", canary.route, canary.percent, why)
        self._metrics.rolled_back(self._routes[canary.route].name)
        return ended

    def _learn(self, canary: Canary) -> None:
        known = self._known.get(canary.route)
        if known is not None and canary.since < known.since:  # it was read before somebody set it anew
            return
        self._known[canary.route] = canary
        self._metrics.canary(self._routes[canary.route].name, canary.percent)


def asker(account: str, ask: Ask) -> str:
    """Whose request it is: a user's, where one is named, else a conversation's, known by its first question."""
    user = next((ask.labels[name] for name in USER if name in ask.labels), None)
    if user is not None:
        return f"{account} user {user}"
    first = next((turn.model_dump_json() for turn in ask.request.messages if turn.role == "user"), "")
    return f"{account} conversation {first}"


def place(route: str, who: str) -> float:
    """Where somebody stands from 0 to 100, always in the same place: raising the percentage keeps whom it had."""
    digest = hashlib.sha256(f"{route} {who}".encode(errors="surrogatepass")).digest()
    return 100 * int.from_bytes(digest[:8], "big") / 2**64
