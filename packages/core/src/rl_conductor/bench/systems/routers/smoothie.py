"""A router after Smoothie (arXiv 2412.04692): no labels; who agrees with the others in meaning is taken to be right.

Every worker answers. Replies are embedded, and each worker's distance to the unknown right answer follows in closed
form from its distances to two others (algorithm 1), averaged over all such pairs: over the calibration questions and
this one for the `independent` form, over the nearest of them for the `dependent` one.
"""

from __future__ import annotations

import asyncio
from itertools import chain, combinations
from typing import Literal

import numpy as np
from pydantic import Field

from rl_conductor.bench.arena import Arena
from rl_conductor.bench.rows import lesson
from rl_conductor.bench.systems.alone import each_alone
from rl_conductor.bench.systems.base import Reply, System, SystemEntry
from rl_conductor.bench.systems.routers.embedding import Floats, embedded
from rl_conductor.errors import ConfigError
from rl_conductor.tasks import Sample


class Smoothie(SystemEntry):
    """All workers answer; the reply of the one that is estimated best is taken."""

    kind: Literal["smoothie"]
    form: Literal["independent", "dependent"] = "dependent"
    """Whether a worker is as good on every question, or as good as on questions like this one."""
    neighbours: int = Field(default=20, ge=1)
    """How many questions like this one count."""

    async def ready(self, name: str, arena: Arena) -> list[System]:
        """The system. The calibration samples' right answers are not looked at."""
        if len(arena.pool) < 3:
            raise ConfigError(f"smoothie compares three workers or more, but the pool has {len(arena.pool)}")
        rows = await each_alone(arena)
        known = np.stack([embedded([row.text for row in each]) for each in rows.values()], axis=1)
        questions = embedded([sample.question for sample in arena.calibration.samples])
        workers = list(rows)

        async def answer(sample: Sample, repeat: int) -> Reply:
            runs = [arena.run(sample.question, repeat=repeat, single=worker) for worker in workers]
            traces = await asyncio.gather(*runs)
            fresh = embedded([trace.text for trace in traces])
            near = known if self.form == "independent" else known[self._nearest(questions, sample.question)]
            best = int(distances(np.concatenate((near, fresh[None]))).argmin())
            return Reply(traces[best].text, tuple(traces), choice=workers[best])

        about = f"all workers answer, the most agreed-with in meaning counts ({self.form}; after arXiv 2412.04692)"
        identity = f"{self.identity} {lesson(chain.from_iterable(rows.values()))}"
        return [System(name=name, about=about, identity=identity, answer=answer)]

    def _nearest(self, questions: Floats, question: str) -> list[int]:
        likeness = questions @ embedded([question])[0]
        return [int(place) for place in np.argsort(-likeness, kind="stable")[: self.neighbours]]


def distances(replies: Floats) -> Floats:
    """The estimated mean squared distance of each worker's replies from the right ones.

    For independent errors, the squared distance of two workers is the sum of their distances from the truth, so three
    workers' distances give each one's own.

    Args:
        replies: embeddings, by question, worker and dimension.
    """
    count = replies.shape[1]
    gaps = replies[:, :, None] - replies[:, None]
    apart = (gaps**2).sum(axis=-1).mean(axis=0)
    found = np.zeros(count)
    for worker in range(count):
        pairs = combinations([other for other in range(count) if other != worker], 2)
        found[worker] = np.mean([(apart[worker, i] + apart[worker, j] - apart[i, j]) / 2 for i, j in pairs])
    return found
