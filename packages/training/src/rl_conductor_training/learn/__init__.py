"""Learns which workflows over a given pool answer which questions, and proves it on held-out questions.

In: a task or production runs, a pool and a budget. Out: a folder with a learned conductor, its record and a report. No
GPU; only `PlannerWeights` needs torch.
"""

from rl_conductor_training.learn.learn_run import LearnProgress
from rl_conductor_training.learn.learners.instructions import EvolvedInstructions
from rl_conductor_training.learn.learners.weights import PlannerWeights
from rl_conductor_training.learn.pipeline import learn
from rl_conductor_training.learn.production.from_runs import learn_from_runs
from rl_conductor_training.learn.record import FeedbackLearnRecord, LearnRecord
from rl_conductor_training.learn.settings import LearnSettings
from rl_conductor_training.train.reward_table.table import TableSettings

__all__ = [
    "EvolvedInstructions",
    "FeedbackLearnRecord",
    "LearnProgress",
    "LearnRecord",
    "LearnSettings",
    "PlannerWeights",
    "TableSettings",
    "learn",
    "learn_from_runs",
]
