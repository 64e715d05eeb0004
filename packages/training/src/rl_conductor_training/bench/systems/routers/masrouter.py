"""A router after MasRouter (arXiv 2502.11133): chooses a collaboration mode, then the worker of each step.

The paper's controller is a cascade (section 4): the collaboration mode, then roles and their models, trained by policy
gradient on score minus cost. Here both choices are linear in a question's embedding, and they are fitted to random
workflows on the calibration samples, each weighted by the exponential of its advantage (arXiv 1910.00177): a policy
gradient that pays for its calls once.
"""

from __future__ import annotations

import random
from itertools import chain
from typing import Literal

import numpy as np
from pydantic import Field
from scipy.optimize import minimize
from scipy.special import log_softmax

from rl_conductor.prompting.subtasks import ANSWER, VERIFY
from rl_conductor.workflow.workflow import Step, Workflow
from rl_conductor_training.bench.context import BenchContext
from rl_conductor_training.bench.results import fingerprint_results, require_any_answer
from rl_conductor_training.bench.systems.base import PART, Reply, System, SystemEntry
from rl_conductor_training.bench.systems.routers.embedding import Floats, embed
from rl_conductor_training.tasks import Sample

MODES: dict[str, tuple[tuple[str, frozenset[int]], ...]] = {
    "single": ((ANSWER, frozenset()),),
    "chain": ((PART, frozenset()), (ANSWER, frozenset({0}))),
    "long chain": ((PART, frozenset()), (PART, frozenset({0})), (ANSWER, frozenset({0, 1}))),
    "reflection": ((ANSWER, frozenset()), (VERIFY, frozenset({0}))),
    "debate": ((ANSWER, frozenset()), (ANSWER, frozenset()), (VERIFY, frozenset({0, 1}))),
}
"""Collaboration modes: the subtask and access list of each step."""


class MasRouter(SystemEntry):
    """Chooses a collaboration mode and its workers for each question."""

    kind: Literal["masrouter"]
    draws: int = Field(default=2, ge=1)
    """Number of random workflows per calibration sample to train on."""
    cost: float = Field(default=0.02, ge=0)
    """Cost of a step, in units of the score."""
    temperature: float = Field(default=0.3, gt=0)
    """Temperature of the advantage weights."""
    penalty: float = Field(default=0.01, ge=0)
    """L2 penalty on the weights of the policy."""

    async def build(self, name: str, context: BenchContext) -> list[System]:
        """Runs random workflows on the calibration samples and trains the policy on their results."""
        workers = list(context.pool)
        task = context.require_calibration()
        runs = [await context.collect_results(self._explorer(name, context, draw), task) for draw in range(self.draws)]
        require_any_answer(chain.from_iterable(runs), task.name)
        pairs = [(sample, result) for results in runs for sample, result in zip(task.samples, results, strict=True)]
        pairs = [(sample, result) for sample, result in pairs if result.choice]  # the others failed in scoring
        policy = self.train(
            embed([sample.question for sample, _ in pairs]),
            [parse_choice(result.choice) for _, result in pairs],
            np.array([result.value - self.cost * result.steps for _, result in pairs]),
            workers,
        )

        async def answer(sample: Sample, repeat: int) -> Reply:
            mode, team = policy.choose(embed([sample.question])[0])
            trace = await context.run(sample.question, repeat=repeat, workflow=build_workflow(mode, team))
            return Reply.from_trace(trace, choice=format_choice(mode, team))

        training = f"learned from {len(pairs)} random workflows"
        description = f"chooses a way to cooperate, then the workers; {training} (after arXiv 2502.11133)"
        identity = f"{self.identity} {MODES} {fingerprint_results(result for _, result in pairs)}"
        return [System(name=name, description=description, identity=identity, answer=answer)]

    def _explorer(self, name: str, context: BenchContext, number: int) -> System:
        """Builds a system that answers with a random mode and random workers."""
        workers = list(context.pool)

        async def answer(sample: Sample, repeat: int) -> Reply:
            generator = random.Random(f"{context.seed} {number} {sample.id}")  # noqa: S311
            mode = generator.choice(list(MODES))
            team = tuple(generator.choice(workers) for _ in MODES[mode])
            trace = await context.run(sample.question, repeat=repeat, workflow=build_workflow(mode, team))
            return Reply.from_trace(trace, choice=format_choice(mode, team))

        return System(
            name=f"{name}.explorer{number}",
            description="random modes and workers",
            identity=f"masrouter {number} {MODES}",
            answer=answer,
        )

    def train(
        self, questions: Floats, choices: list[tuple[str, tuple[str, ...]]], rewards: Floats, workers: list[str]
    ) -> RoutingPolicy:
        """Fits a policy to workflows, weighted by their advantage.

        Args:
            questions: embeddings, a row for each workflow.
            choices: its mode and its workers.
            rewards: its score minus its cost.
            workers: all workers of the pool.
        """
        policy = RoutingPolicy(workers, questions.shape[1] + 1)
        inputs = np.hstack((questions, np.ones((len(questions), 1))))
        targets = np.zeros((len(choices), len(policy.groups)))
        for row, (mode, team) in zip(targets, choices, strict=True):
            row[policy.option_indices(mode, team)] = 1
        importance = np.exp((rewards - rewards.mean()) / self.temperature)
        solution = minimize(
            lambda parameters: self._loss(policy, parameters, inputs, targets, importance / importance.sum()),
            policy.weights.ravel(),
            jac=True,
            method="L-BFGS-B",
        )
        policy.weights = solution.x.reshape(policy.weights.shape)
        return policy

    def _loss(
        self, policy: RoutingPolicy, parameters: Floats, inputs: Floats, targets: Floats, importance: Floats
    ) -> tuple[float, Floats]:
        """Returns the weighted negative log-likelihood of the choices with its penalty, and the gradient."""
        weights = parameters.reshape(policy.weights.shape)
        logits = inputs @ weights.T
        value, gradient = self.penalty * float(parameters @ parameters), 2 * self.penalty * weights
        for group in range(policy.groups[-1] + 1):
            members = policy.groups == group
            log_probabilities, group_targets = log_softmax(logits[:, members], axis=1), targets[:, members]
            group_importance = importance[:, None] * group_targets.sum(axis=1, keepdims=True)  # 0 outside of the mode
            value -= float((importance[:, None] * group_targets * log_probabilities).sum())
            residuals = group_importance * np.exp(log_probabilities) - importance[:, None] * group_targets
            gradient[members] += residuals.T @ inputs
        return value, gradient.ravel()


class RoutingPolicy:
    """Linear softmax policies for the mode, and for the worker of each step of each mode."""

    def __init__(self, workers: list[str], inputs: int) -> None:
        self.modes = list(MODES)
        self.workers = workers
        steps = [f"{mode} {step}" for mode in MODES for step in range(len(MODES[mode]))]
        self._offsets = {step: len(self.modes) + index * len(workers) for index, step in enumerate(steps)}
        self.groups = np.array([0] * len(self.modes) + [1 + index for index in range(len(steps)) for _ in workers])
        self.weights: Floats = np.zeros((len(self.groups), inputs))

    def option_indices(self, mode: str, team: tuple[str, ...]) -> list[int]:
        """Returns the rows of `weights` that belong to a choice: its mode, then the worker of each step."""
        steps = [self._offsets[f"{mode} {step}"] + self.workers.index(worker) for step, worker in enumerate(team)]
        return [self.modes.index(mode), *steps]

    def choose(self, question: Floats) -> tuple[str, tuple[str, ...]]:
        """Returns the most likely mode and the most likely worker for each of its steps."""
        logits = self.weights @ np.append(question, 1.0)
        mode = self.modes[int(logits[: len(self.modes)].argmax())]
        offsets = [self._offsets[f"{mode} {step}"] for step in range(len(MODES[mode]))]
        return mode, tuple(self.workers[int(logits[start : start + len(self.workers)].argmax())] for start in offsets)


def build_workflow(mode: str, team: tuple[str, ...]) -> Workflow:
    """Builds the workflow of a mode with a worker for each step."""
    steps = zip(MODES[mode], team, strict=True)
    return Workflow(
        steps=tuple(Step(subtask=subtask, worker=worker, access=access) for (subtask, access), worker in steps)
    )


def format_choice(mode: str, team: tuple[str, ...]) -> str:
    """Formats a choice for `SampleResult.choice`."""
    return f"{mode}: {', '.join(team)}"


def parse_choice(choice: str) -> tuple[str, tuple[str, ...]]:
    """Parses the output of `format_choice`."""
    mode, _, team = choice.partition(": ")
    return mode, tuple(team.split(", "))
