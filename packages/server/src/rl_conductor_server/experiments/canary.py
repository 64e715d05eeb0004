"""Canaries: the conductor answers a percentage of an experiment's requests until one of the canary's guards trips.

The percentage is in the store, so it survives a restart, and every replica applies a change within a few seconds.
Assignment is sticky: a user, or else a conversation, stays on one arm.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from rl_conductor.errors import PolicyError
from rl_conductor_server.experiments.experiment import Experiment
from rl_conductor_server.experiments.guards import find_tripped_guard
from rl_conductor_server.experiments.sampling import hash_to_fraction, sample_unit
from rl_conductor_server.metrics import Metrics
from rl_conductor_server.parsed_request import ParsedRequest
from rl_conductor_server.store import Arm, Canary, Store

log = logging.getLogger("rl_conductor_server")


class CanaryController:
    """Assigns requests to arms and rolls canaries back, for all experiments of this process."""

    def __init__(self, experiments: Mapping[str, Experiment], store: Store, metrics: Metrics) -> None:
        self._experiments = {experiment.pinned: experiment for experiment in experiments.values()}
        self._store = store.experiments
        self._metrics = metrics
        self._canaries: dict[str, Canary] = {}

    async def start(self) -> None:
        """Applies new percentages from the settings and reads the others from the store."""
        for experiment in self._experiments.values():
            await self._store.configure_canary(experiment.pinned, experiment.entry.canary.percent)
        await self.refresh()

    async def refresh(self) -> None:
        """Reads changes by other processes and administrators, and rolls back canaries with a tripped guard."""
        if not self._experiments:
            return
        for canary in await self._store.list_canaries():
            if canary.experiment in self._experiments:
                self._update(await self._check_guards(canary) if canary.percent else canary)

    async def set_percent(self, experiment: Experiment, percent: float, reason: str) -> Canary:
        """Changes the percentage of requests that the conductor answers."""
        canary = await self._store.set_canary(experiment.pinned, percent, reason)
        assert canary is not None, "`start` has created one for every experiment"
        self._update(canary)
        return canary

    def get(self, experiment: Experiment) -> Canary:
        """Returns the canary as this process last read it."""
        return self._canaries[experiment.pinned]

    def assign_arm(self, experiment: Experiment, account: str, parsed: ParsedRequest) -> Arm:
        """Chooses the arm that answers; a request that the conductor's policy rejects goes to the baseline."""
        percent = self._canaries[experiment.pinned].percent
        if not percent or sample_percentile(experiment.name, sample_unit(account, parsed)) >= percent:
            return "baseline"
        try:
            experiment.conductor.conductor.check(parsed.request)
        except PolicyError:
            return "baseline"
        return "conductor"

    async def _check_guards(self, canary: Canary) -> Canary:
        experiment = self._experiments[canary.experiment]
        guards = experiment.entry.canary.guards
        answers = await self._store.list_canary_answers(canary, limit=guards.window)
        pairs = await self._store.list_pairs(canary.experiment, since=canary.since, limit=guards.window)
        reason = find_tripped_guard(guards, answers, [pair.verdict for pair in pairs])
        if reason is None:
            return canary
        rolled_back = await self._store.roll_back_canary(canary, f"rolled back: {reason}")
        if rolled_back is None:  # another process changed it first: the next refresh reads that change
            return canary
        log.error("the canary of %s was rolled back from %g %%: %s", canary.experiment, canary.percent, reason)
        self._metrics.count_rollback(experiment.name)
        return rolled_back

    def _update(self, canary: Canary) -> None:
        current = self._canaries.get(canary.experiment)
        if current is not None and canary.since < current.since:  # it was read before the latest change
            return
        self._canaries[canary.experiment] = canary
        self._metrics.set_canary(self._experiments[canary.experiment].name, canary.percent)


def sample_percentile(experiment: str, unit: str) -> float:
    """Maps a sample unit to a fixed number from 0 to 100, so that raising the percentage only adds units."""
    return 100 * hash_to_fraction(f"{experiment} {unit}")
