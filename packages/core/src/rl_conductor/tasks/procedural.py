"""The sets of reasoning-gym: questions made by a program from a seed, each with a checker of its own.

A few of them can't be used as a measure: their questions differ from one time to the next, or their checker accepts
any reply. That is found out when the set is loaded. Part marks count as wrong, because some checkers give them to junk.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from rl_conductor.errors import ConfigError
from rl_conductor.tasks.answers import final
from rl_conductor.tasks.base import Sample, Score, Task, compared, wrong
from rl_conductor.tasks.checking import Checker

JUNK = "the quick brown fox"
ASK = '{question}\n\nEnd your reply with a line that begins with "Answer: ".'

_checker = Checker("rl_conductor.tasks.procedural:marks")


def reasoning_gym(name: str, *, size: int = 100, seed: int = 0, **config: Any) -> Task:
    """The set called `name`, such as `chain_sum`.

    Args:
        name: as reasoning-gym calls it.
        size: how many questions.
        seed: what they are drawn from.
        config: the set's own options, such as `max_terms`.

    Raises:
        ConfigError: there is no such set or option, or it can't be used as a measure.
    """
    given = json.dumps({"size": size, "seed": seed, **config}, sort_keys=True)
    entries = _made(name, given)
    if [entry["question"] for entry in entries] != [entry["question"] for entry in _made.__wrapped__(name, given)]:
        raise ConfigError(f"reasoning-gym's {name!r} makes other questions each time; use another set")
    if _marks_of_junk(name, given) >= 1:
        raise ConfigError(f"reasoning-gym's {name!r} accepts any reply; use another set")
    samples = tuple(
        Sample(
            id=f"{name}-{seed}-{number}",
            question=ASK.format(question=entry["question"]),
            answer=str(entry["answer"] or ""),
            domain=name,
            details={"set": name, "config": given, "number": number},
        )
        for number, entry in enumerate(entries)
    )
    return Task(f"reasoning-gym:{name}", samples, _score)


async def _score(sample: Sample, text: str) -> Score:
    """Full marks by the set's own checker."""
    answer = final(text)
    told = sample.details
    try:
        value = await _checker.ask(name=told["set"], config=told["config"], number=told["number"], answer=answer)
    except ValueError as why:
        return wrong(answer, f"its checker failed on this: {why}")
    expected = sample.answer or "whatever its checker accepts"
    return compared(right=value >= 1, answer=answer, expected=expected)


def marks(name: str, config: str, number: int, answer: str) -> float:
    """The set's own marks for an answer, 0 to 1; for the checker's process, since some sets evaluate what they read."""
    made = _dataset(name, config)
    return float(made.score_answer(answer=answer, entry=made[number]))


def _marks_of_junk(name: str, config: str) -> float:
    try:
        return marks(name, config, 0, JUNK)
    except Exception:  # raising on junk is no way to accept it
        return 0.0


@cache
def _made(name: str, config: str) -> list[dict[str, Any]]:
    return list(_dataset.__wrapped__(name, config))


@cache
def _dataset(name: str, config: str) -> Any:
    try:
        import reasoning_gym  # noqa: PLC0415 (seconds to load)
    except ImportError as missing:
        raise ConfigError("procedural sets need reasoning-gym: pip install 'rl-conductor[bench]'") from missing
    try:
        return reasoning_gym.create_dataset(name, **json.loads(config))
    except (ValueError, TypeError, AssertionError) as error:
        raise ConfigError(f"reasoning-gym has no set {name!r} with {config}: {error}") from error
