"""Splits a task once into training, validation and held-out questions, by group: no template is in two parts."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from rl_conductor._internal.jsonl import read_value, write_value
from rl_conductor.errors import ConfigError
from rl_conductor.types import Value
from rl_conductor_training.tasks import Sample, Task
from rl_conductor_training.tasks.groups import group_of

Part = Literal["train", "validation", "heldout"]
SHARES: dict[Part, float] = {"train": 0.5, "validation": 0.2, "heldout": 0.3}
"""Shares of the questions."""
MIN_GROUPS = 10
"""Minimum number of groups: with fewer, no part has enough independent questions."""


class HeldOutOpening(Value):
    """The record of the one time that the held-out questions were opened."""

    opened: datetime
    questions: int
    seed: int
    samples: tuple[str, ...] = ()
    """Ids of the questions."""


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
            self.opening = HeldOutOpening(
                opened=datetime.now(UTC),
                questions=len(self.task.samples),
                seed=self.seed,
                samples=tuple(sample.id for sample in self.task.samples),
            )
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

    Domains with fewer groups than there are parts are balanced together.

    Groups that an earlier version of the folder held out and opened (see `archive_opening`) are for training.

    Raises:
        ConfigError: there are too few groups of questions.
    """
    groups = {sample.id: group_of(sample) for sample in task.samples}
    if len(set(groups.values())) < MIN_GROUPS:
        raise ConfigError(
            f"task {task.name!r} has {len(task.samples)} questions in {len(set(groups.values()))} groups, but learning "
            f'needs at least {MIN_GROUPS} groups; add questions of other kinds, or give each its own "group"'
        )
    opened = {name for path in _archived_openings(opening_file) for name in read_value(path, HeldOutOpening).samples}
    parts = _assign_groups(task.samples, groups, seed, {group for name, group in groups.items() if name in opened})

    def select(part: Part) -> Task:
        samples = tuple(sample for sample in task.samples if parts[groups[sample.id]] == part)
        return replace(task, samples=samples)

    heldout = HeldOut(select("heldout"), seed, opening_file)
    return LearnData(select("train"), select("validation"), heldout, groups)


def archive_opening(opening_file: Path) -> None:
    """Renames the record of an opening, because the folder is learned anew with more questions."""
    if opening_file.exists():
        number = len(_archived_openings(opening_file)) + 1
        opening_file.rename(opening_file.with_stem(f"{opening_file.stem}-{number}"))


def _archived_openings(opening_file: Path) -> list[Path]:
    return sorted(opening_file.parent.glob(f"{opening_file.stem}-*{opening_file.suffix}"))


def _assign_groups(
    samples: Sequence[Sample], groups: dict[str, str], seed: int, opened: Collection[str]
) -> dict[str, Part]:
    """Assigns each group to the part that has the largest deficit in the group's domain; `opened` ones to training."""
    members: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        members[groups[sample.id]].append(sample)
    names = sorted(members)
    random.Random(seed).shuffle(names)  # noqa: S311
    sizes = Counter(members[name][0].domain for name in names)
    counts: dict[str, dict[Part, int]] = defaultdict(lambda: dict.fromkeys(SHARES, 0))
    parts: dict[str, Part] = {}
    for name in sorted(names, key=lambda name: -len(members[name])):  # large groups first, which are hard to balance
        domain = members[name][0].domain
        count = counts[domain if sizes[domain] >= len(SHARES) else ""]
        size = sum(count.values()) + len(members[name])
        deficits = {part: SHARES[part] * size - count[part] for part in SHARES}
        parts[name] = "train" if name in opened else max(deficits, key=lambda part: deficits[part])
        count[parts[name]] += len(members[name])
    return parts
