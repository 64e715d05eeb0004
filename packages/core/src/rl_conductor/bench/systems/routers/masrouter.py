"""A router after MasRouter (arXiv 2502.11133): it chooses how workers cooperate, then who takes each part.

The paper's controller is a cascade (section 4): the mode of cooperation, then roles and their models, trained by policy
gradient on score less cost. Here both choices are linear in a question's embedding, and they are fitted to workflows
drawn at random on the calibration samples, each weighted by the exponential of its advantage (arXiv 1910.00177): that
is a policy gradient which pays for its calls once.
"""

from __future__ import annotations

import random
from itertools import chain
from typing import Literal

import numpy as np
from pydantic import Field
from scipy.optimize import minimize
from scipy.special import log_softmax

from rl_conductor.bench.arena import Arena
from rl_conductor.bench.rows import check_learnable, lesson
from rl_conductor.bench.systems.base import PART, Reply, System, SystemEntry
from rl_conductor.bench.systems.routers.embedding import Floats, embedded
from rl_conductor.staffing import ANSWER, VERIFY
from rl_conductor.tasks import Sample
from rl_conductor.workflow import Step, Workflow

MODES: dict[str, tuple[tuple[str, frozenset[int]], ...]] = {
    "single": ((ANSWER, frozenset()),),
    "chain": ((PART, frozenset()), (ANSWER, frozenset({0}))),
    "long chain": ((PART, frozenset()), (PART, frozenset({0})), (ANSWER, frozenset({0, 1}))),
    "reflection": ((ANSWER, frozenset()), (VERIFY, frozenset({0}))),
    "debate": ((ANSWER, frozenset()), (ANSWER, frozenset()), (VERIFY, frozenset({0, 1}))),
}
"""How workers cooperate: what each step is told and which it sees. A role is a place in a mode."""


class MasRouter(SystemEntry):
    """A mode and its workers for each question."""

    kind: Literal["masrouter"]
    draws: int = Field(default=2, ge=1)
    """Random workflows on each calibration sample, to learn from."""
    cost: float = Field(default=0.02, ge=0)
    """What a step costs, in scores."""
    temperature: float = Field(default=0.3, gt=0)
    """How much better a workflow must be to count e times as much."""
    penalty: float = Field(default=0.01, ge=0)
    """On the squared weights of the policy."""

    async def ready(self, name: str, arena: Arena) -> list[System]:
        """The system, trained."""
        workers = list(arena.pool)
        task = arena.calibration
        drawn = [await arena.record(self._explorer(name, arena, draw), task) for draw in range(self.draws)]
        check_learnable(chain.from_iterable(drawn), task.name)
        pairs = [(sample, row) for rows in drawn for sample, row in zip(task.samples, rows, strict=True)]
        seen = [(sample, row) for sample, row in pairs if row.choice]  # one whose scoring failed is worth nothing known
        policy = self.trained(
            embedded([sample.question for sample, _ in seen]),
            [decoded(row.choice) for _, row in seen],
            np.array([row.value - self.cost * row.steps for _, row in seen]),
            workers,
        )

        async def answer(sample: Sample, repeat: int) -> Reply:
            mode, who = policy.best(embedded([sample.question])[0])
            trace = await arena.run(sample.question, repeat=repeat, workflow=workflow(mode, who))
            return Reply.of(trace, choice=encoded(mode, who))

        learned = f"learned from {len(seen)} random workflows"
        about = f"chooses a way to cooperate, then the workers; {learned} (after arXiv 2502.11133)"
        identity = f"{self.identity} {MODES} {lesson(row for _, row in seen)}"
        return [System(name=name, about=about, identity=identity, answer=answer)]

    def _explorer(self, name: str, arena: Arena, number: int) -> System:
        """A system that answers by any mode and any workers."""
        workers = list(arena.pool)

        async def answer(sample: Sample, repeat: int) -> Reply:
            draw = random.Random(f"{arena.seed} {number} {sample.id}")  # noqa: S311
            mode = draw.choice(list(MODES))
            who = tuple(draw.choice(workers) for _ in MODES[mode])
            trace = await arena.run(sample.question, repeat=repeat, workflow=workflow(mode, who))
            return Reply.of(trace, choice=encoded(mode, who))

        system = f"{name}.explorer{number}"
        return System(
            name=system, about="random modes and workers", identity=f"masrouter {number} {MODES}", answer=answer
        )

    def trained(
        self, questions: Floats, choices: list[tuple[str, tuple[str, ...]]], rewards: Floats, workers: list[str]
    ) -> RoutingPolicy:
        """The policy that would have had the most reward on these questions.

        Args:
            questions: embeddings, a row for each workflow that was run.
            choices: its mode and its workers.
            rewards: what it was worth.
            workers: all there are.
        """
        policy = RoutingPolicy(workers, questions.shape[1] + 1)
        inputs = np.hstack((questions, np.ones((len(questions), 1))))
        chosen = np.zeros((len(choices), len(policy.groups)))
        for row, (mode, who) in zip(chosen, choices, strict=True):
            row[policy.marks(mode, who)] = 1
        counts = np.exp((rewards - rewards.mean()) / self.temperature)
        found = minimize(
            lambda weights: self._loss(policy, weights, inputs, chosen, counts / counts.sum()),
            policy.weights.ravel(),
            jac=True,
            method="L-BFGS-B",
        )
        policy.weights = found.x.reshape(policy.weights.shape)
        return policy

    def _loss(
        self, policy: RoutingPolicy, flat: Floats, inputs: Floats, chosen: Floats, counts: Floats
    ) -> tuple[float, Floats]:
        """How unlikely the policy makes what was chosen, each workflow as often as it counts; and the slope."""
        weights = flat.reshape(policy.weights.shape)
        logits = inputs @ weights.T
        value, slope = self.penalty * float(flat @ flat), 2 * self.penalty * weights
        for group in range(policy.groups[-1] + 1):
            members = policy.groups == group
            likely, taken = log_softmax(logits[:, members], axis=1), chosen[:, members]
            used = counts[:, None] * taken.sum(axis=1, keepdims=True)  # a place counts where the mode has it
            value -= float((counts[:, None] * taken * likely).sum())
            slope[members] += (used * np.exp(likely) - counts[:, None] * taken).T @ inputs
        return value, slope.ravel()


class RoutingPolicy:
    """The mode of cooperation, and for each place in it the worker: each a softmax of weights times a question."""

    def __init__(self, workers: list[str], inputs: int) -> None:
        self.modes = list(MODES)
        self.workers = workers
        places = [f"{mode} {place}" for mode in MODES for place in range(len(MODES[mode]))]
        self._first = {place: len(self.modes) + index * len(workers) for index, place in enumerate(places)}
        self.groups = np.array([0] * len(self.modes) + [1 + i for i in range(len(places)) for _ in workers])
        self.weights: Floats = np.zeros((len(self.groups), inputs))

    def marks(self, mode: str, who: tuple[str, ...]) -> list[int]:
        """The positions of a choice among all that can be chosen: its mode, then a worker for each place."""
        places = [self._first[f"{mode} {place}"] + self.workers.index(worker) for place, worker in enumerate(who)]
        return [self.modes.index(mode), *places]

    def best(self, question: Floats) -> tuple[str, tuple[str, ...]]:
        """The likeliest mode, and the likeliest worker for each of its places."""
        logits = self.weights @ np.append(question, 1.0)
        mode = self.modes[int(logits[: len(self.modes)].argmax())]
        firsts = [self._first[f"{mode} {place}"] for place in range(len(MODES[mode]))]
        return mode, tuple(self.workers[int(logits[at : at + len(self.workers)].argmax())] for at in firsts)


def workflow(mode: str, who: tuple[str, ...]) -> Workflow:
    """A mode with its workers."""
    steps = zip(MODES[mode], who, strict=True)
    return Workflow(steps=tuple(Step(subtask=told, worker=worker, access=seen) for (told, seen), worker in steps))


def encoded(mode: str, who: tuple[str, ...]) -> str:
    """A choice in a row."""
    return f"{mode}: {', '.join(who)}"


def decoded(choice: str) -> tuple[str, tuple[str, ...]]:
    """The choice that a row tells of."""
    mode, _, who = choice.partition(": ")
    return mode, tuple(who.split(", "))
