"""A router after RouterDC (arXiv 2409.19886): questions and workers in one space, trained with two contrastive losses.

The sample-worker loss (equation 2) pulls a question to the workers that are right on it and pushes it from those that
are wrong; the sample-sample loss (equation 4) pulls it to questions of its own cluster. The paper trains an encoder;
here a linear map on fixed embeddings and a vector per worker are trained.
"""

from __future__ import annotations

from itertools import chain
from typing import Literal

import numpy as np
from pydantic import Field
from scipy.cluster.vq import kmeans2
from scipy.optimize import minimize

from rl_conductor_training.bench.context import BenchContext
from rl_conductor_training.bench.results import fingerprint_results
from rl_conductor_training.bench.systems.base import Reply, System, SystemEntry
from rl_conductor_training.bench.systems.routers.embedding import Floats, embed
from rl_conductor_training.bench.systems.single_model import evaluate_workers
from rl_conductor_training.tasks import Sample


class RouterDC(SystemEntry):
    """Chooses one worker for each question, by similarity in the trained space."""

    kind: Literal["routerdc"]
    dimensions: int = Field(default=32, ge=1)
    temperature: float = Field(default=0.2, gt=0)
    clusters: int = Field(default=4, ge=1)
    weight: float = Field(default=1.0, ge=0)
    """Weight of the sample-sample loss (paper: 1)."""
    penalty: float = Field(default=1e-3, ge=0)
    """L2 penalty on all parameters."""

    async def build(self, name: str, context: BenchContext) -> list[System]:
        """Trains on the results of each worker alone on the calibration samples."""
        results = await evaluate_workers(context)
        right = np.array([[result.value for result in worker_results] for worker_results in results.values()]).T
        questions = embed([sample.question for sample in context.require_calibration().samples])
        space = self.train(questions, right, context.seed)
        workers = list(results)

        async def answer(sample: Sample, repeat: int) -> Reply:
            worker = workers[int(space.scores(embed([sample.question]))[0].argmax())]
            return Reply.from_trace(await context.run(sample.question, repeat=repeat, single=worker), choice=worker)

        description = f"routes to one worker, learned on {len(right)} calibration samples (after arXiv 2409.19886)"
        identity = f"{self.identity} {fingerprint_results(chain.from_iterable(results.values()))}"
        return [System(name=name, description=description, identity=identity, answer=answer)]

    def train(self, questions: Floats, right: Floats, seed: int) -> RouterSpace:
        """Trains a space in which a question lies near the workers that are right on it.

        Args:
            questions: embeddings, a row each.
            right: scores from 0 to 1, a row per question, a column per worker.
            seed: seed of the initial parameters and clusters.
        """
        generator = np.random.default_rng(seed)
        sizes = (questions.shape[1], right.shape[1])
        initial = generator.normal(scale=self.dimensions**-0.5, size=(sum(sizes), self.dimensions))
        _, cluster = kmeans2(questions, min(self.clusters, len(questions)), seed=generator, minit="++")
        same_cluster = (cluster[:, None] == cluster) & ~np.eye(len(cluster), dtype=bool)
        partners = same_cluster / np.maximum(same_cluster.sum(axis=1, keepdims=True), 1)
        solution = minimize(
            lambda parameters: self._loss(parameters, questions, right, partners, cluster[:, None] != cluster),
            initial.ravel(),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 300},
        )
        return RouterSpace(*np.split(solution.x.reshape(initial.shape), [sizes[0]]))

    def _loss(
        self, parameters: Floats, questions: Floats, right: Floats, partners: Floats, negatives: Floats
    ) -> tuple[float, Floats]:
        """Returns the sum of both losses and its gradient."""
        space = RouterSpace(*np.split(parameters.reshape(-1, self.dimensions), [questions.shape[1]]))
        directions, norms = space.project(questions)
        value, score_gradient = contrastive_loss(directions @ space.workers.T / self.temperature, right, right == 0)
        sample_loss, similarity_gradient = contrastive_loss(
            directions @ directions.T / self.temperature, partners, negatives
        )
        symmetric_gradient = similarity_gradient + similarity_gradient.T
        direction_gradient = score_gradient @ space.workers + self.weight * symmetric_gradient @ directions
        radial = (direction_gradient * directions).sum(axis=1, keepdims=True) * directions
        projection_gradient = (direction_gradient - radial) / norms
        gradient = np.concatenate((questions.T @ projection_gradient, score_gradient.T @ directions)).ravel()
        loss = value + self.weight * sample_loss + self.penalty * float(parameters @ parameters)
        return loss, gradient / self.temperature + 2 * self.penalty * parameters


class RouterSpace:
    """A projection of question embeddings, and a vector per worker."""

    def __init__(self, projection: Floats, workers: Floats) -> None:
        self.projection = projection
        self.workers = workers

    def project(self, questions: Floats) -> tuple[Floats, Floats]:
        """Returns the unit vector of each projected question, and its norm before."""
        raw = questions @ self.projection
        norms: Floats = np.linalg.norm(raw, axis=1, keepdims=True) + 1e-9
        return raw / norms, norms

    def scores(self, questions: Floats) -> Floats:
        """Returns the similarity of each question (row) and worker (column)."""
        scores: Floats = self.project(questions)[0] @ self.workers.T
        return scores


def contrastive_loss(logits: Floats, positives: Floats, negatives: Floats) -> tuple[float, Floats]:
    """Returns the mean contrastive loss of the rows and its gradient by `logits`.

    The loss of a positive, weighted by `positives`, is the negative log of its softmax among itself and the `negatives`
    of its row.
    """
    shifted = logits - logits.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    denominators = exponentials + (exponentials * negatives).sum(axis=1, keepdims=True)
    denominators = np.maximum(denominators, np.finfo(float).tiny)
    value = float((positives * (np.log(denominators) - shifted)).sum()) / len(logits)
    pull = positives * (exponentials / denominators - 1)
    push = negatives * exponentials * (positives / denominators).sum(axis=1, keepdims=True)
    return value, (pull + push) / len(logits)
