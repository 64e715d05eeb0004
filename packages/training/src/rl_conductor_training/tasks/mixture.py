"""`mixture`: several tasks as one, such as the four data sets of the paper's training. Each scores its own samples.

In a file, its options are tables with the keys of `TaskEntry`:

    name = "mixture"
    options.mathematics = { name = "math-500", limit = 240 }
    options.knowledge = { name = "mmlu", options = { part = "auxiliary_train" }, limit = 240, shuffle = 0 }
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rl_conductor._internal.validation import first_field_error
from rl_conductor.errors import ConfigError
from rl_conductor.scoring import Sample, Score, Task
from rl_conductor.types import Price
from rl_conductor_training.tasks import TaskEntry


def mixture(**parts: Mapping[str, Any]) -> Task:
    """Interleaves the samples of several tasks; a part that has run out of samples is skipped.

    Args:
        parts: the keys of a `TaskEntry` by part name; the name becomes a prefix of sample ids, so that none clash.

    Raises:
        ConfigError: there is no part, or a part is invalid.
    """
    tasks = {name: entry.build() for name, entry in parse_parts(parts).items()}
    originals = {f"{name}/{sample.id}": (task, sample) for name, task in tasks.items() for sample in task.samples}
    prefixed = [[_with_prefix(name, sample) for sample in task.samples] for name, task in tasks.items()]

    async def score(sample: Sample, text: str) -> Score:
        task, original = originals[sample.id]
        return await task.score(original, text)

    interleaved = chain.from_iterable(zip_longest(*prefixed))
    samples = tuple(sample for sample in interleaved if sample is not None)
    return Task("mixture", samples, score, _judge_price(tasks.values()))


def _judge_price(tasks: Iterable[Task]) -> Price | None:
    """Returns the highest price of the parts' judges; `None` if there is none, or the price of one is unknown."""
    prices = [task.judge_price for task in tasks if any("judge" in sample.details for sample in task.samples)]
    priced = [price for price in prices if price is not None]
    return max(priced, key=lambda price: price.output, default=None) if len(priced) == len(prices) else None


def parse_parts(parts: Mapping[str, Any]) -> dict[str, TaskEntry]:
    """Validates the parts of a mixture."""
    return {name: _parse_part(name, part) for name, part in parts.items()}


def resolve_part_paths(folder: Path, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Resolves the relative file paths of all parts against `folder`."""
    return {
        name: entry.resolve_paths(folder).model_dump(exclude_defaults=True)
        for name, entry in parse_parts(parts).items()
    }


def _parse_part(name: str, part: Any) -> TaskEntry:
    try:
        return TaskEntry.model_validate(part)
    except ValidationError as error:
        raise ConfigError(f"part {name!r} of the mixture: {first_field_error(error)}") from error


def _with_prefix(part: str, sample: Sample) -> Sample:
    """Prefixes the ids of a sample and its contrast set with the part's name."""
    contrast = sample.contrast and f"{part}/{sample.contrast}"
    return sample.model_copy(update={"id": f"{part}/{sample.id}", "contrast": contrast})
