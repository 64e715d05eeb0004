"""Systems that have run, made of what was right."""

from __future__ import annotations

from collections.abc import Sequence

from rl_conductor.bench.rows import Key, Row
from rl_conductor.bench.runner import Entrant, Section
from rl_conductor.bench.systems.base import Reply, System
from rl_conductor.tasks import Sample
from rl_conductor.types import Usage


def entrant(
    name: str,
    right: Sequence[float],
    *,
    valid: Sequence[bool | None] | None = None,
    workers: str = "a",
    peeks: bool = False,
) -> Entrant:
    """A system that was right so often, on one question after the other."""
    plans = valid or [None] * len(right)
    rows = [
        Row(
            key=Key(pool="p", task="t", system=name, sample=f"s{number}", repeat=0, settings=""),
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
    system = System(name=name, about=f"{name} |\nanswers", identity=name, answer=_never, peeks=peeks)
    return Entrant(system, tuple(rows))


def repeated(name: str, valid: list[list[float]]) -> Entrant:
    """Three repetitions of each question; those with a valid plan have these scores, the others are wrong."""
    one = entrant(name, [0] * 3 * len(valid))
    rows = []
    for number, scores in enumerate(valid):
        for repeat, row in enumerate(one.rows[:3]):
            key = row.key.model_copy(update={"sample": f"s{number}", "repeat": repeat})
            value = scores[repeat] if repeat < len(scores) else 0.0
            rows.append(row.model_copy(update={"key": key, "value": value, "valid": repeat < len(scores)}))
    return Entrant(one.system, tuple(rows))


def section(*entrants: Entrant) -> Section:
    """They side by side."""
    return Section("t", "p", {"a": "toy:a"}, entrants)


async def _never(_: Sample, __: int) -> Reply:
    raise AssertionError("a report runs nothing")
