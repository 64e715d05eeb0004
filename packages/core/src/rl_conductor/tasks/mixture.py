"""`mixture`: several tasks as one, such as the four data sets of the paper's training. Each scores its own samples.

Where a file says which tasks, its keys are those of `TaskEntry`, a table for each:

    name = "mixture"
    options.mathematics = { name = "math-500", limit = 240 }
    options.knowledge = { name = "mmlu", options = { part = "auxiliary_train" }, limit = 240, shuffle = 0 }
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rl_conductor.errors import ConfigError
from rl_conductor.invalid import first_problem
from rl_conductor.tasks import TaskEntry
from rl_conductor.tasks.base import Sample, Score, Task


def mixture(**parts: Mapping[str, Any]) -> Task:
    """Samples of each part in turn, so that the first few have some of each; a shorter part ends before the others.

    Args:
        parts: by a name of your own, what a `TaskEntry` takes; the name is put before ids, which so can't clash.

    Raises:
        ConfigError: there is no part, or something is wrong with one.
    """
    tasks = {name: entry.build() for name, entry in entries(parts).items()}
    own = {f"{name}/{sample.id}": (made, sample) for name, made in tasks.items() for sample in made.samples}
    renamed = [[_of(name, sample) for sample in made.samples] for name, made in tasks.items()]

    async def score(sample: Sample, text: str) -> Score:
        made, original = own[sample.id]
        return await made.score(original, text)

    in_turn = chain.from_iterable(zip_longest(*renamed))
    return Task("mixture", tuple(sample for sample in in_turn if sample is not None), score)


def entries(parts: Mapping[str, Any]) -> dict[str, TaskEntry]:
    """The parts, checked."""
    return {name: _entry(name, given) for name, given in parts.items()}


def beside(folder: Path, parts: Mapping[str, Any]) -> dict[str, Any]:
    """The parts, with the files that they name in `folder`."""
    return {name: entry.beside(folder).model_dump(exclude_defaults=True) for name, entry in entries(parts).items()}


def _entry(name: str, given: Any) -> TaskEntry:
    try:
        return TaskEntry.model_validate(given)
    except ValidationError as error:
        raise ConfigError(f"part {name!r} of the mixture: {first_problem(error)}") from error


def _of(part: str, sample: Sample) -> Sample:
    """`sample` by a name that no other part has; so, too, its contrast set."""
    contrast = sample.contrast and f"{part}/{sample.contrast}"
    return sample.model_copy(update={"id": f"{part}/{sample.id}", "contrast": contrast})
