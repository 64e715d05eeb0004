"""The data sets of reasoning-gym: questions generated from a seed, each set with its own checker.

A set is rejected on loading when its questions are not reproducible or its checker accepts any reply. Partial scores
count as wrong, because some checkers give them to junk.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from rl_conductor.errors import ConfigError
from rl_conductor.scoring import Sample, Score, Task, compared, wrong
from rl_conductor_training.tasks.scorers.answers import extract_final_answer, extract_final_lines
from rl_conductor_training.tasks.scorers.checker_process import CheckerProcess

JUNK = "the quick brown fox"
ASK = '{question}\n\nEnd your reply with a line that begins with "Answer: ".'
ASK_LINES = '{question}\n\nEnd your reply with the line "Answer:" and your answer below it.'
"""For sets with answers of several lines, such as grids."""

_checker = CheckerProcess("rl_conductor_training.tasks.datasets.reasoning_gym:score_answer")


def reasoning_gym(name: str, *, size: int = 100, seed: int = 0, **config: Any) -> Task:
    """Loads the set called `name`, such as `chain_sum`.

    Args:
        name: the set's name in reasoning-gym.
        size: number of questions.
        seed: seed of the questions.
        config: the set's own options, such as `max_terms`.

    Raises:
        ConfigError: the set or option does not exist, or the set is rejected.
    """
    options = json.dumps({"size": size, "seed": seed, **config}, sort_keys=True)
    entries = _load_entries(name, options)
    if [entry["question"] for entry in entries] != [
        entry["question"] for entry in _load_entries.__wrapped__(name, options)
    ]:
        raise ConfigError(f"reasoning-gym's {name!r} generates other questions each time; use another set")
    if _score_of_junk(name, options) >= 1:
        raise ConfigError(f"reasoning-gym's {name!r} accepts any reply; use another set")
    has_lines = any("\n" in str(entry["answer"]) for entry in entries)
    ask, extract = (ASK_LINES, extract_final_lines) if has_lines else (ASK, extract_final_answer)
    samples = tuple(
        Sample(
            id=f"{name}-{seed}-{number}",
            question=ask.format(question=entry["question"]),
            answer=str(entry["answer"] or ""),
            domain=name,
            details={"set": name, "config": options, "number": number},
        )
        for number, entry in enumerate(entries)
    )
    return Task(f"reasoning-gym:{name}", samples, partial(_score, extract=extract))


async def _score(sample: Sample, text: str, *, extract: Callable[[str], str]) -> Score:
    """Scores 1 for a full score of the set's own checker."""
    answer = extract(text)
    details = sample.details
    try:
        value = await _checker.call(
            name=details["set"], config=details["config"], number=details["number"], answer=answer
        )
    except ValueError as error:
        return wrong(answer, f"its checker failed on this: {error}")
    expected = sample.answer or "whatever its checker accepts"
    return compared(right=value >= 1, answer=answer, expected=expected)


def score_answer(name: str, config: str, number: int, answer: str) -> float:
    """Grades an answer from 0 to 1; runs in a `CheckerProcess`, because some sets evaluate the answer."""
    dataset = _dataset(name, config)
    return float(dataset.score_answer(answer=answer, entry=dataset[number]))


def _score_of_junk(name: str, config: str) -> float:
    try:
        return score_answer(name, config, 0, JUNK)
    except Exception:  # a checker that raises on junk does not accept it
        return 0.0


@cache
def _load_entries(name: str, config: str) -> list[dict[str, Any]]:
    return list(_dataset.__wrapped__(name, config))


@cache
def _dataset(name: str, config: str) -> Any:
    import reasoning_gym  # noqa: PLC0415 (takes seconds to import)

    try:
        return reasoning_gym.create_dataset(name, **json.loads(config))
    except (ValueError, TypeError, AssertionError) as error:
        raise ConfigError(f"reasoning-gym has no set {name!r} with {config}: {error}") from error
