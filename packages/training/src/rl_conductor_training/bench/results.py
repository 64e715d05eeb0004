"""`SampleResult`: one system on one sample; `ResultFile`: the file of results, from which a bench resumes."""

from __future__ import annotations

from collections.abc import Iterable
from operator import not_

from pydantic import Field

from rl_conductor._internal.formatting import counted
from rl_conductor.errors import ConfigError
from rl_conductor.types import FinishReason, Text, Usage, Value
from rl_conductor_training.row_file import Row, RowFile, fingerprint


class ResultKey(Value):
    """Identifies a result within a results file."""

    pool: str
    task: str
    system: str
    sample: str
    repeat: int
    settings: str
    """Fingerprint of everything that affects the result: the system and its training data, the pool and its cards, the
    sample and its scorer, the seed, the prompts."""


class SampleResult(Row):
    """The result of one run of a system on a sample; one row of `rows.jsonl`."""

    key: ResultKey
    domain: str = ""
    depth: int | None = None
    group: str = ""
    """The group of questions that this one belongs to, as in `tasks.groups`; empty if it is independent."""
    value: float
    """The score, 0 to 1."""
    answer: Text | None = None
    """The answer that the scorer extracted from the reply."""
    undecided: bool = Field(default=False, exclude_if=not_)
    """Whether a judge gave no clear verdict on the reply, so that it counts as wrong."""
    text: Text = ""
    """Text of the reply."""
    valid: bool | None = None
    """Whether the first plan was valid as written; `None` for systems without plans."""
    plan_problem: Text = Field(default="", exclude_if=not_)
    """Why the first plan was not valid as written: its first error or repair; empty if it was."""
    steps: int = 0
    """Number of executed steps."""
    workers: tuple[str, ...] = ()
    """Worker of each step, in order."""
    choice: str = ""
    """The system's decision for this sample, such as the chosen worker."""
    finishes: dict[str, dict[FinishReason, int]] = Field(default_factory=dict, exclude_if=not_)
    """All replies by worker or `the planner`, and by why they ended."""
    usage: Usage = Usage()
    seconds: float = 0.0
    """Seconds until the answer, on the critical path; cached calls count with their original latency."""


def require_any_answer(results: Iterable[SampleResult], task: str) -> None:
    """Raises `ConfigError` if no run on a task had an answer, so that nothing can be learned from it."""
    errors = [result.error for result in results]
    if None not in errors:
        raise ConfigError(
            f"nothing can be learned from {task!r}: {counted(len(errors), 'run')}, none with an answer; the first says:"
            f" {errors[0]}"
        )


def fingerprint_results(results: Iterable[SampleResult]) -> str:
    """Hashes everything that a system can learn from results."""
    return fingerprint(*(result.model_dump_json(include={"value", "text", "steps", "choice"}) for result in results))


class ResultFile(RowFile[SampleResult]):
    """The results of a bench."""

    row_type = SampleResult
    contents = "a bench"
