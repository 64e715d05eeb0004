"""Evals of conductors in other people's tools: a pytest plugin, and a model and a task for inspect-ai.

In: the folder of a learned conductor, and questions with answers. Out: whether the conductor became worse than its
record, or the scores that inspect-ai computes.
"""

from rl_conductor_training.evals.record_check import AnswerChange, RecordComparison, compare_with_record

__all__ = ["AnswerChange", "RecordComparison", "compare_with_record"]
