"""`LearnSource`: the questions of the `learn` command, from a task or from stored runs, and the judge of answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_conductor.cli.output import console
from rl_conductor.errors import ConfigError

if TYPE_CHECKING:
    from rl_conductor_training.learn.record import FeedbackLearnRecord, LearnRecord
    from rl_conductor_training.tasks import Task


@dataclass(frozen=True)
class LearnSource:
    """The arguments that name the questions, and how answers to them are scored."""

    task: str | None
    heldout: str | None
    from_runs: Path | None
    judge: str | None
    feedback_key: str | None
    update: bool

    def check(self, search_options: Mapping[str, Sequence[object]]) -> None:
        """Checks that the arguments go together.

        Args:
            search_options: the values of the options that only a search has a use for, by what they are for.

        Raises:
            ConfigError: an argument is missing or has no effect.
        """
        if (self.task is None) == (self.from_runs is None):
            raise ConfigError("write either a TASK, such as questions.jsonl, or --from-runs FILE")
        if self.from_runs is None:
            self._check_options_of_runs()
        elif self.heldout is not None:
            raise ConfigError("--heldout belongs to a TASK; questions of --from-runs FILE are split by themselves")
        elif self.judge is None and (unused := [name for name, values in search_options.items() if any(values)]):
            raise ConfigError(
                f"{unused[0]} need --judge MODEL: without a judge of new answers, --from-runs calls no worker"
            )

    def _check_options_of_runs(self) -> None:
        for option, value in (("--feedback-key", self.feedback_key), ("--update", self.update)):
            if value:
                raise ConfigError(f"{option} belongs to --from-runs FILE; leave it out, or name the file")

    def learn(self, pool: Path, **options: Any) -> LearnRecord | FeedbackLearnRecord:
        """Learns from the task, or from the stored runs; `options` are arguments of both."""
        from rl_conductor_training.learn import learn, learn_from_runs  # noqa: PLC0415 - imports scipy

        if self.from_runs is None:
            task, heldout = self._load(str(self.task)), None if self.heldout is None else self._load(self.heldout)
            self._check_judged([task] if heldout is None else [task, heldout])
            return asyncio.run(learn(task, pool, heldout=heldout, **options))
        from_runs = learn_from_runs(
            self.from_runs,
            pool,
            judge=self.judge,
            feedback_key=self.feedback_key,
            update=self.update,
            on_counts=lambda counts: console.note(console.stderr(), counts),
            **options,
        )
        return asyncio.run(from_runs)

    def _load(self, name: str) -> Task:
        """Loads a task, or a file of questions, with the judge of those that need one."""
        from rl_conductor_training.learn.data import load_questions  # noqa: PLC0415 - imports scipy

        return load_questions(name, judge=self.judge)

    def _check_judged(self, tasks: Sequence[Task]) -> None:
        samples = [sample for task in tasks for sample in task.samples]
        if self.judge and not any("judge" in sample.details for sample in samples):
            raise ConfigError("--judge scores questions with scoring 'judge', and there is none; leave it out")
