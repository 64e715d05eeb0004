"""`Learner`: the protocol of two methods, and the lessons that every learner gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rl_conductor.conductor import Conductor
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.learn.experience import ScoreTable


@dataclass(frozen=True)
class Lessons:
    """The data of a learner: scores on training and validation questions, never on held-out ones."""

    table: ScoreTable
    workflows: Sequence[Workflow]
    """The workflows to choose from; each of them ran on every question."""
    singles: Sequence[Workflow]
    """The workflows of single workers."""


class Learner(Protocol):
    """Learns from experience, and changes a conductor accordingly."""

    name: str

    def fit(self, lessons: Lessons) -> None:
        """Learns from the scores."""

    def apply(self, conductor: Conductor) -> Conductor:
        """Returns a copy of `conductor` that plans as learned; its `selector` and `planner` are saved in the folder."""
