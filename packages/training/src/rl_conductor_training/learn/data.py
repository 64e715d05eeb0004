"""Splits a task once into training, validation and held-out questions, by group: no template is in two parts.

Users may bring held-out questions of their own; then the task is for training and validation alone.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from rl_conductor._internal.formatting import counted
from rl_conductor._internal.jsonl import read_value, write_value
from rl_conductor.errors import ConfigError
from rl_conductor.models import Model
from rl_conductor.scoring import Score, Split
from rl_conductor.text.truncation import truncate_middle
from rl_conductor.types import Value
from rl_conductor_training.row_file import fingerprint
from rl_conductor_training.tasks import Sample, Task, load_task
from rl_conductor_training.tasks.groups import (
    check_answers,
    count_different,
    group_of,
    hash_question,
    normalize_question,
    shared_questions,
)
from rl_conductor_training.tasks.scorers.judge import judge_entry
from rl_conductor_training.workers.reply_cache import cache_version, object_version

SHARES: dict[Split, float] = {"train": 0.5, "validation": 0.2, "heldout": 0.3}
"""Shares of the questions."""
MIN_GROUPS = 10
"""Minimum number of groups: with fewer, no part has enough independent questions."""


class HeldOutOpening(Value):
    """The record of the first time that the held-out questions were opened, and of the runs since then."""

    opened: datetime
    questions: int
    seed: int
    samples: tuple[str, ...] = ()
    """Ids of the questions."""
    hashes: tuple[str, ...] = ()
    """Hashes of the questions, because ids may be line numbers; records of earlier versions have none."""
    groups: tuple[str, ...] = ()
    """The group of each question; records of earlier versions have none."""
    runs: tuple[str, ...] = ()
    """Fingerprints of the runs that were evaluated on the questions; records of earlier versions have none."""

    def includes(self, sample: Sample) -> bool:
        """Whether the sample is one of the questions."""
        return hash_question(sample.question) in self.hashes if self.hashes else sample.id in self.samples


@dataclass
class HeldOut:
    """The held-out questions, which a run opens at its end; a file records it from the first scored answer on."""

    task: Task
    groups: Mapping[str, str]
    """Group by sample id."""
    seed: int
    path: Path
    """File of the record."""

    @cached_property
    def ids(self) -> frozenset[str]:
        """The ids of the questions."""
        return frozenset(sample.id for sample in self.task.samples)

    @property
    def size(self) -> int:
        """The number of questions."""
        return len(self.task.samples)

    @property
    def was_opened_with_others(self) -> bool:
        """`True` if the file records an opening of other questions."""
        if not self.path.exists():
            return False
        opening = read_value(self.path, HeldOutOpening)
        return opening.questions != self.size or not all(map(opening.includes, self.task.samples))

    def record_opening(self, run: str) -> HeldOutOpening:
        """Records that an answer of a run to one of the questions was scored; a run that resumes changes nothing."""
        self.archive_other_opening()
        if self.path.exists():
            opening = read_value(self.path, HeldOutOpening)
            if run in opening.runs:
                return opening
            opening = opening.model_copy(update={"runs": (*opening.runs, run)})
            write_value(self.path, opening)
            return opening
        opening = HeldOutOpening(
            opened=datetime.now(UTC),
            questions=self.size,
            seed=self.seed,
            samples=tuple(sample.id for sample in self.task.samples),
            hashes=tuple(hash_question(sample.question) for sample in self.task.samples),
            groups=tuple(self.groups[sample.id] for sample in self.task.samples),
            runs=(run,),
        )
        write_value(self.path, opening)
        return opening

    def archive_other_opening(self) -> None:
        """Renames the record of an opening of other questions, because the folder is learned anew."""
        if self.was_opened_with_others:
            number = len(_archived_openings(self.path)) + 1
            self.path.rename(self.path.with_stem(f"{self.path.stem}-{number}"))


@dataclass(frozen=True)
class LearnData:
    """The three parts of a task, and the group of each question."""

    task: Task
    """All questions and their scorer."""
    train: Task
    validation: Task
    heldout: HeldOut
    groups: dict[str, str]
    """Group by sample id."""

    @property
    def sizes(self) -> dict[str, int]:
        """Number of questions in each part."""
        return {
            "training": len(self.train.samples),
            "validation": len(self.validation.samples),
            "held-out": self.heldout.size,
        }

    @property
    def notes(self) -> list[str]:
        """Remarks about the split for readers of the proof."""
        return [*self._note_templates(), *self._note_shared_groups(), *self.describe_copies()]

    def describe_copies(self) -> list[str]:
        """Describes that the task has some questions more than once."""
        size, different = len(self.task.samples), count_different(self.task.samples)
        if different == size:
            return []
        return [f"of the {size} questions, only {different} are different: each copy counts"]

    def _note_templates(self) -> list[str]:
        templates = {group_of(sample) for sample in self.task.samples}
        if len(templates) == len(set(self.groups.values())):
            return []
        count = counted(len(templates), "template")
        return [f"the questions have only {count}, so each counts by itself: other kinds may give other results"]

    def _note_shared_groups(self) -> list[str]:
        trained = {self.groups[sample.id] for part in (self.train, self.validation) for sample in part.samples}
        heldout = {self.groups[sample.id] for sample in self.heldout.task.samples}
        if not (shared := heldout & trained):
            return []
        counts = f"{len(shared)} of the {len(heldout)} groups of held-out questions are also in training"
        return [f"{counts}: on other kinds of questions the systems may do worse than in this evaluation"]


def load_questions(name: str | Path, *, judge: str | None = None) -> Task:
    """Loads a task by its name, or a file of questions by its path.

    Args:
        name: the name as for `load_task`, or the path.
        judge: the model that scores questions of a file with scoring `judge`; a task has its own.

    Raises:
        ConfigError: there is neither, or it is invalid.
    """
    task = f"jsonl:{name}" if Path(name).is_file() else str(name)
    return add_judge_version(load_task(task, judge=judge), judge) if task.startswith("jsonl:") else load_task(task)


def add_judge_version(task: Task, judge: Model | str | None) -> Task:
    """Adds the judge's version to the questions that it scores: its name does not show its address or code.

    Results are stored by question, so another judge of the same name scores again.
    """
    if judge is None:
        return task
    version = cache_version(judge_entry(judge)) if isinstance(judge, str) else object_version(judge)
    if not version:
        return task
    added = {"judge version": fingerprint(version)}
    return replace(
        task,
        samples=tuple(
            sample.model_copy(update={"details": sample.details | added}) if "judge" in sample.details else sample
            for sample in task.samples
        ),
    )


def split_task(
    task: Task | str | Path, *, seed: int, opening_file: Path, heldout: Task | str | Path | None = None
) -> LearnData:
    """Splits a task by group, with the same share of each domain in every part.

    Domains with fewer groups than there are parts are balanced together.

    Groups that were held out and opened before, in a run on other questions or with another seed, are for training.
    Nothing is written: the record of that opening is archived when these held-out questions are opened.

    Args:
        task: the questions, or a name or file as for `load_questions`.
        seed: seed of the split.
        opening_file: where the opening of the held-out questions is recorded.
        heldout: held-out questions besides those of `task`, of which none is held out then.

    Raises:
        ConfigError: there are too few groups of questions, a question has two answers or is also a held-out one, or
            too many were opened before.
    """
    task = load_questions(task) if isinstance(task, str | Path) else task
    heldout = load_questions(heldout) if isinstance(heldout, str | Path) else heldout
    for each in (task,) if heldout is None else (task, heldout):
        check_answers(each)
    opened_before = _archived_openings(opening_file)
    data = _split(task, heldout, seed, opening_file, opened_before)
    if data.heldout.was_opened_with_others:
        data = _split(task, heldout, seed, opening_file, [*opened_before, opening_file])
    return data


def _split(task: Task, heldout: Task | None, seed: int, opening_file: Path, opened_before: Iterable[Path]) -> LearnData:
    """Splits a task; groups of openings before this one are for training."""
    whole = task if heldout is None else _join_tasks(task, heldout)
    own = set() if heldout is None else {sample.id for sample in heldout.samples}
    groups = name_groups(whole.samples)
    rest = [sample for sample in whole.samples if sample.id not in own]
    _check_groups(task, {groups[sample.id] for sample in rest})
    openings = [read_value(path, HeldOutOpening) for path in opened_before]
    opened = {groups[sample.id] for sample in rest if any(opening.includes(sample) for opening in openings)}
    shares: dict[Split, float] = {part: share for part, share in SHARES.items() if heldout is None or part != "heldout"}
    by_group = _assign_groups(rest, groups, seed, opened, shares)
    if missing := shares.keys() - by_group.values():
        raise ConfigError(
            f"too many questions of {task.name!r} were held out and opened in {str(opening_file.parent)!r} before: "
            f"none is left for {' and '.join(sorted(missing))}; add questions, or learn in another folder"
        )
    parts: dict[str, Split] = {sample.id: by_group[groups[sample.id]] for sample in rest}

    def select(part: Split) -> Task:
        samples = tuple(sample for sample in whole.samples if parts.get(sample.id, "heldout") == part)
        return replace(whole, samples=samples)

    return LearnData(
        whole, select("train"), select("validation"), HeldOut(select("heldout"), groups, seed, opening_file), groups
    )


def name_groups(samples: Sequence[Sample]) -> dict[str, str]:
    """Returns the group of each question; if the questions have too few templates, each is a group of its own."""
    groups = {sample.id: group_of(sample) for sample in samples}
    has_own_groups = any(sample.details.get("group") or sample.contrast for sample in samples)
    if not has_own_groups and len(set(groups.values())) < MIN_GROUPS:
        groups = {sample.id: sample.id for sample in samples}
    return _join_duplicates(samples, groups)


def _join_duplicates(samples: Sequence[Sample], groups: Mapping[str, str]) -> dict[str, str]:
    """Joins the groups that have a question in common, so that no copy of a question is learned from and held out."""
    joined: dict[str, str] = {}

    def find(group: str) -> str:
        while group in joined:
            group = joined[group]
        return group

    first_by_question: dict[str, str] = {}
    for sample in samples:
        first = find(first_by_question.setdefault(normalize_question(sample.question), groups[sample.id]))
        other = find(groups[sample.id])
        if other != first:
            joined[other] = first
    return {name: find(group) for name, group in groups.items()}


def _check_groups(task: Task, groups: Collection[str]) -> None:
    if len(groups) < MIN_GROUPS:
        sizes = f"{counted(len(task.samples), 'question')} in {counted(len(groups), 'group')}"
        raise ConfigError(
            f"task {task.name!r} has {sizes}, but learning needs at least {MIN_GROUPS} groups; add questions of other "
            'kinds, or give each its own "group"'
        )


def _join_tasks(task: Task, heldout: Task) -> Task:
    """Returns the questions of both; those of `task` get other ids where a held-out question has the same.

    Raises:
        ConfigError: a question is in both.
    """
    if shared := shared_questions(task.samples, heldout.samples):
        raise ConfigError(
            f"{len(shared)} of the held-out questions of {heldout.name!r} are also in {task.name!r}, such as "
            f"{truncate_middle(shared[0], 60)!r}; remove them from one of the two, since nothing may learn from them"
        )
    names = {sample.id for sample in heldout.samples}
    originals = {f"training/{sample.id}" if sample.id in names else sample.id: sample for sample in task.samples}
    heldout_samples = {sample.id: sample for sample in heldout.samples}

    async def score(sample: Sample, text: str) -> Score:
        if sample.id in heldout_samples:
            return await heldout.score(sample, text)
        return await task.score(originals[sample.id], text)

    renamed = [sample.model_copy(update={"id": name}) for name, sample in originals.items()]
    return Task(task.name, (*renamed, *heldout.samples), score, task.judge_price or heldout.judge_price)


def _archived_openings(opening_file: Path) -> list[Path]:
    return sorted(opening_file.parent.glob(f"{opening_file.stem}-*{opening_file.suffix}"))


def _assign_groups(
    samples: Sequence[Sample],
    groups: dict[str, str],
    seed: int,
    opened: Collection[str],
    shares: Mapping[Split, float],
) -> dict[str, Split]:
    """Assigns each group to the part that has the largest deficit in the group's domain; `opened` ones to training."""
    members: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        members[groups[sample.id]].append(sample)
    names = sorted(members)
    random.Random(seed).shuffle(names)  # noqa: S311
    sizes = Counter(members[name][0].domain for name in names)
    counts: dict[str, dict[Split, int]] = defaultdict(lambda: dict.fromkeys(shares, 0))
    parts: dict[str, Split] = {}
    for name in sorted(names, key=lambda name: -len(members[name])):  # large groups first, which are hard to balance
        domain = members[name][0].domain
        count = counts[domain if sizes[domain] >= len(shares) else ""]
        size = sum(count.values()) + len(members[name])
        deficits = {part: shares[part] / sum(shares.values()) * size - count[part] for part in shares}
        parts[name] = "train" if name in opened else max(deficits, key=lambda part: deficits[part])
        count[parts[name]] += len(members[name])
    return parts
