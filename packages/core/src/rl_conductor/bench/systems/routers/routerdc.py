"""A router after RouterDC (arXiv 2409.19886): questions and workers in one space, learned by two contrastive losses.

The sample-worker loss (equation 2) pulls a question to the workers that are right on it and pushes it from those that
are wrong; the sample-sample loss (equation 4) pulls it to a question of its own cluster. The paper trains an encoder;
here a linear map on fixed embeddings and a vector for each worker are learned.
"""

from __future__ import annotations

from itertools import chain
from typing import Literal

import numpy as np
from pydantic import Field
from scipy.cluster.vq import kmeans2
from scipy.optimize import minimize

from rl_conductor.bench.arena import Arena
from rl_conductor.bench.rows import lesson
from rl_conductor.bench.systems.alone import each_alone
from rl_conductor.bench.systems.base import Reply, System, SystemEntry
from rl_conductor.bench.systems.routers.embedding import Floats, embedded
from rl_conductor.tasks import Sample


class RouterDC(SystemEntry):
    """One worker for each question, chosen by where the question lies."""

    kind: Literal["routerdc"]
    dimensions: int = Field(default=32, ge=1)
    temperature: float = Field(default=0.2, gt=0)
    clusters: int = Field(default=4, ge=1)
    weight: float = Field(default=1.0, ge=0)
    """Of the sample-sample loss (paper: 1)."""
    penalty: float = Field(default=1e-3, ge=0)
    """On the squares of what is learned."""

    async def ready(self, name: str, arena: Arena) -> list[System]:
        """The system, trained on what each worker alone made of the calibration samples."""
        rows = await each_alone(arena)
        right = np.array([[row.value for row in each] for each in rows.values()]).T
        space = self.trained(embedded([sample.question for sample in arena.calibration.samples]), right, arena.seed)
        workers = list(rows)

        async def answer(sample: Sample, repeat: int) -> Reply:
            worker = workers[int(space.scores(embedded([sample.question]))[0].argmax())]
            return Reply.of(await arena.run(sample.question, repeat=repeat, single=worker), choice=worker)

        about = f"routes to one worker, learned on {len(right)} calibration samples (after arXiv 2409.19886)"
        identity = f"{self.identity} {lesson(chain.from_iterable(rows.values()))}"
        return [System(name=name, about=about, identity=identity, answer=answer)]

    def trained(self, questions: Floats, right: Floats, seed: int) -> Space:
        """A space in which a question lies near the workers that are right on it.

        Args:
            questions: their embeddings, a row each.
            right: scores from 0 to 1, a row a question, a column a worker.
            seed: of the first guess.
        """
        draw = np.random.default_rng(seed)
        sizes = (questions.shape[1], right.shape[1])
        first = draw.normal(scale=self.dimensions**-0.5, size=(sum(sizes), self.dimensions))
        _, cluster = kmeans2(questions, min(self.clusters, len(questions)), seed=draw, minit="++")
        same = (cluster[:, None] == cluster) & ~np.eye(len(cluster), dtype=bool)
        partners = same / np.maximum(same.sum(axis=1, keepdims=True), 1)
        found = minimize(
            lambda flat: self._loss(flat, questions, right, partners, cluster[:, None] != cluster),
            first.ravel(),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 300},
        )
        return Space(*np.split(found.x.reshape(first.shape), [sizes[0]]))

    def _loss(
        self, flat: Floats, questions: Floats, right: Floats, partners: Floats, strangers: Floats
    ) -> tuple[float, Floats]:
        """Both losses, and their slope."""
        space = Space(*np.split(flat.reshape(-1, self.dimensions), [questions.shape[1]]))
        placed, lengths = space.places(questions)
        value, by_score = contrast(placed @ space.workers.T / self.temperature, right, right == 0)
        together, by_likeness = contrast(placed @ placed.T / self.temperature, partners, strangers)
        by_place = by_score @ space.workers + self.weight * (by_likeness + by_likeness.T) @ placed
        by_raw = (by_place - (by_place * placed).sum(axis=1, keepdims=True) * placed) / lengths
        slopes = np.concatenate((questions.T @ by_raw, by_score.T @ placed)).ravel() / self.temperature
        return value + self.weight * together + self.penalty * float(flat @ flat), slopes + 2 * self.penalty * flat


class Space:
    """Where questions and workers lie."""

    def __init__(self, projection: Floats, workers: Floats) -> None:
        self.projection = projection
        self.workers = workers

    def places(self, questions: Floats) -> tuple[Floats, Floats]:
        """The direction of each question, and how long it was before."""
        raw = questions @ self.projection
        lengths: Floats = np.linalg.norm(raw, axis=1, keepdims=True) + 1e-9
        return raw / lengths, lengths

    def scores(self, questions: Floats) -> Floats:
        """How near each worker is to each question; a row a question."""
        scores: Floats = self.places(questions)[0] @ self.workers.T
        return scores


def contrast(logits: Floats, goods: Floats, bads: Floats) -> tuple[float, Floats]:
    """The contrastive loss of each row, averaged, and its slope by `logits`.

    Each good one is held, by its weight in `goods`, against all `bads` of its row: less the log of its softmax among
    itself and those.
    """
    shifted = logits - logits.max(axis=1, keepdims=True)
    chances = np.exp(shifted)
    whole = np.maximum(chances + (chances * bads).sum(axis=1, keepdims=True), np.finfo(float).tiny)
    value = float((goods * (np.log(whole) - shifted)).sum()) / len(logits)
    slope = goods * (chances / whole - 1) + bads * chances * (goods / whole).sum(axis=1, keepdims=True)
    return value, slope / len(logits)
