"""Builds system results from lists of scores."""

from __future__ import annotations

from collections.abc import Sequence

from rl_conductor.types import Usage
from rl_conductor_training.bench.results import ResultKey, SampleResult
from rl_conductor_training.bench.runner import SystemResult, TaskResult
from rl_conductor_training.bench.systems.base import Reply, System
from rl_conductor_training.tasks import Sample


def system_result(
    name: str,
    right: Sequence[float],
    *,
    valid: Sequence[bool | None] | None = None,
    workers: str = "a",
    sees_answers: bool = False,
) -> SystemResult:
    """A system with these scores, one per question."""
    plans = valid or [None] * len(right)
    results = [
        SampleResult(
            key=ResultKey(pool="p", task="t", system=name, sample=f"s{number}", repeat=0, settings=""),
            domain="sums",
            depth=1 + number % 2,
            value=value,
            valid=plan,
            steps=len(workers),
            workers=tuple(workers),
            usage=Usage(input_tokens=10, output_tokens=5, calls=1),
            seconds=float(number),
        )
        for number, (value, plan) in enumerate(zip(right, plans, strict=True))
    ]
    system = System(
        name=name, description=f"{name} |\nanswers", identity=name, answer=_never, sees_answers=sees_answers
    )
    return SystemResult(system, tuple(results))


def system_result_with_repeats(name: str, valid: list[list[float]]) -> SystemResult:
    """Three repetitions of each question; those with a valid plan have these scores, the others are wrong."""
    system = system_result(name, [0] * 3 * len(valid))
    results = []
    for number, scores in enumerate(valid):
        for repeat, result in enumerate(system.results[:3]):
            key = result.key.model_copy(update={"sample": f"s{number}", "repeat": repeat})
            value = scores[repeat] if repeat < len(scores) else 0.0
            results.append(result.model_copy(update={"key": key, "value": value, "valid": repeat < len(scores)}))
    return SystemResult(system.system, tuple(results))


def task_result(*systems: SystemResult) -> TaskResult:
    """The task result of these systems."""
    return TaskResult("t", "p", {"a": "toy:a"}, systems)


async def _never(_: Sample, __: int) -> Reply:
    raise AssertionError("a report runs nothing")
