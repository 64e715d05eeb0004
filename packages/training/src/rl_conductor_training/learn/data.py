"""Splits a task once into training, validation and held-out questions, by group: no template is in two parts."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from rl_conductor._internal.jsonl import read_value, write_value
from rl_conductor.errors import ConfigError
from rl_conductor.types import Value
from rl_conductor_training.tasks import Sample, Task

Part = Literal["train", "validation", "heldout"]
SHARES: dict[Part, float] = {"train": 0.5, "validation": 0.2, "heldout": 0.3}
"""Shares of the questions."""
MIN_GROUPS = 10
"""Minimum number of groups: with fewer, no part has enough independent questions."""
_QUOTE = re.compile(r"\"[^\"]*\"|“[^”]*”|'[^']*'(?!\w)")
_NUMBER = re.compile(r"\d[\d.,:]*")
_NAME = re.compile(r"(?<=[a-z,;] )[A-Z][\w'-]*(?: [A-Z][\w'-]*)*")


class HeldOutOpening(Value):
    """The record of the one time that the held-out questions were opened."""

    opened: datetime
    questions: int
    seed: int


@dataclass
class HeldOut:
    """The held-out questions, which are opened once, at the end; the opening is recorded in a file."""

    task: Task
    seed: int
    path: Path
    """File of the record."""
    opening: HeldOutOpening | None = field(default=None, init=False)

    @property
    def size(self) -> int:
        """The number of questions."""
        return len(self.task.samples)

    def open(self) -> Task:
        """Returns the questions, and records the opening; a run that resumes keeps the first record."""
        if self.path.exists():
            self.opening = read_value(self.path, HeldOutOpening)
        else:
            self.opening = HeldOutOpening(opened=datetime.now(UTC), questions=len(self.task.samples), seed=self.seed)
            write_value(self.path, self.opening)
        return self.task


@dataclass(frozen=True)
class LearnData:
    """The three parts of a task, and the group of each question."""

    train: Task
    validation: Task
    heldout: HeldOut
    groups: dict[str, str]
    """Group by sample id."""


def split_task(task: Task, *, seed: int, opening_file: Path) -> LearnData:
    """Splits a task by group, with the same share of each domain in every part.

    Raises:
        ConfigError: there are too few groups of questions.
    """
    groups = {sample.id: group_of(sample) for sample in task.samples}
    if len(set(groups.values())) < MIN_GROUPS:
        raise ConfigError(
            f"task {task.name!r} has {len(task.samples)} questions in {len(set(groups.values()))} groups, but learning "
            f'needs at least {MIN_GROUPS} groups; add questions of other kinds, or give each its own "group"'
        )
    parts = _assign_groups(task.samples, groups, seed)

    def select(part: Part) -> Task:
        samples = tuple(sample for sample in task.samples if parts[groups[sample.id]] == part)
        return replace(task, samples=samples)

    heldout = HeldOut(select("heldout"), seed, opening_file)
    return LearnData(select("train"), select("validation"), heldout, groups)


def group_of(sample: Sample) -> str:
    """Returns the sample's own group or contrast set, else the template of its question."""
    return str(sample.details.get("group") or sample.contrast or template(sample.question))


def template(question: str) -> str:
    """Masks quotes, numbers and names of a question, so that questions of one template become equal."""
    masked = _NAME.sub("<name>", _NUMBER.sub("<number>", _QUOTE.sub("<quote>", question)))
    return " ".join(masked.lower().split())


def _assign_groups(samples: Sequence[Sample], groups: dict[str, str], seed: int) -> dict[str, Part]:
    """Assigns each group to the part that has the largest deficit in the group's domain."""
    members: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        members[groups[sample.id]].append(sample)
    names = sorted(members)
    random.Random(seed).shuffle(names)  # noqa: S311
    counts: dict[str, dict[Part, int]] = defaultdict(lambda: dict.fromkeys(SHARES, 0))
    parts: dict[str, Part] = {}
    for name in sorted(names, key=lambda name: -len(members[name])):  # large groups first, which are hard to balance
        count = counts[members[name][0].domain]
        size = sum(count.values()) + len(members[name])
        parts[name] = max(SHARES, key=lambda part: SHARES[part] * size - count[part])
        count[parts[name]] += len(members[name])
    return parts
