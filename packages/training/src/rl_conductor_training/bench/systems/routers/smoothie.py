"""A router after Smoothie (arXiv 2412.04692): without labels, by the agreement of replies in embedding space.

Every worker answers. The distance of a worker's replies from the unknown right answers has a closed form in its
distances to two others (algorithm 1), averaged over all pairs: over the calibration questions and this one for the
`independent` form, over the nearest of them for the `dependent` one.
"""

from __future__ import annotations

import asyncio
from itertools import chain, combinations
from typing import Literal

import numpy as np
from pydantic import Field

from rl_conductor.errors import ConfigError
from rl_conductor_training.bench.context import BenchContext
from rl_conductor_training.bench.results import fingerprint_results
from rl_conductor_training.bench.systems.base import Reply, System, SystemEntry
from rl_conductor_training.bench.systems.routers.embedding import Floats, embed
from rl_conductor_training.bench.systems.single_model import evaluate_workers
from rl_conductor_training.tasks import Sample


class Smoothie(SystemEntry):
    """Runs all workers and takes the reply of the one with the smallest estimated error."""

    kind: Literal["smoothie"]
    form: Literal["independent", "dependent"] = "dependent"
    """Whether errors are estimated over all questions or over similar ones."""
    neighbours: int = Field(default=20, ge=1)
    """Number of similar questions of the `dependent` form."""

    async def build(self, name: str, context: BenchContext) -> list[System]:
        """Builds the system, without using the right answers of the calibration samples."""
        if len(context.pool) < 3:
            raise ConfigError(f"smoothie compares three workers or more, but the pool has {len(context.pool)}")
        results = await evaluate_workers(context)
        texts = [[result.text for result in worker_results] for worker_results in results.values()]
        calibration_embeddings = np.stack([embed(worker_texts) for worker_texts in texts], axis=1)
        questions = embed([sample.question for sample in context.require_calibration().samples])
        workers = list(results)

        async def answer(sample: Sample, repeat: int) -> Reply:
            runs = [context.run(sample.question, repeat=repeat, single=worker) for worker in workers]
            traces = await asyncio.gather(*runs)
            reply_embeddings = embed([trace.text for trace in traces])
            embeddings = calibration_embeddings
            if self.form == "dependent":
                embeddings = embeddings[self._nearest_questions(questions, sample.question)]
            best = int(estimate_distances(np.concatenate((embeddings, reply_embeddings[None]))).argmin())
            return Reply(traces[best].text, tuple(traces), choice=workers[best])

        description = (
            f"all workers answer, the most agreed-with in meaning counts ({self.form}; after arXiv 2412.04692)"
        )
        identity = f"{self.identity} {fingerprint_results(chain.from_iterable(results.values()))}"
        return [System(name=name, description=description, identity=identity, answer=answer)]

    def _nearest_questions(self, questions: Floats, question: str) -> list[int]:
        similarity = questions @ embed([question])[0]
        return [int(index) for index in np.argsort(-similarity, kind="stable")[: self.neighbours]]


def estimate_distances(replies: Floats) -> Floats:
    """Estimates the mean squared distance of each worker's replies from the right ones.

    For independent errors, the squared distance of two workers is the sum of their distances from the truth, so the
    distances between three workers determine those from the truth.

    Args:
        replies: embeddings, by question, worker and dimension.
    """
    count = replies.shape[1]
    gaps = replies[:, :, None] - replies[:, None]
    pair_distances = (gaps**2).sum(axis=-1).mean(axis=0)
    estimates = np.zeros(count)
    for worker in range(count):
        pairs = combinations([other for other in range(count) if other != worker], 2)
        estimates[worker] = np.mean(
            [(pair_distances[worker, i] + pair_distances[worker, j] - pair_distances[i, j]) / 2 for i, j in pairs]
        )
    return estimates
