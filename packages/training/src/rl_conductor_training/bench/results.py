"""`SampleResult`: one system on one sample; `ResultFile`: the JSON Lines file of results, appended as they arrive.

An interrupted bench resumes from its file. Results are matched by a fingerprint of their settings, and a result without
an answer is tried again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from rl_conductor._internal.formatting import counted
from rl_conductor._internal.io import writing_errors
from rl_conductor._internal.jsonl import read_complete_lines
from rl_conductor.errors import ConfigError
from rl_conductor.types import Text, Usage, Value


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


class SampleResult(Value):
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
    text: Text = ""
    """Text of the reply."""
    error: Text | None = None
    """Reason for a missing reply."""
    valid: bool | None = None
    """Whether the first plan was valid as written; `None` for systems without plans."""
    steps: int = 0
    """Number of executed steps."""
    workers: tuple[str, ...] = ()
    """Worker of each step, in order."""
    choice: str = ""
    """The system's decision for this sample, such as the chosen worker."""
    usage: Usage = Usage()
    seconds: float = 0.0
    """Seconds until the answer, on the critical path; cached calls count with their original latency."""


def fingerprint(*parts: str) -> str:
    """Hashes texts to 16 hexadecimal digits."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


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


class ResultFile:
    """Reads and appends the results of a JSON Lines file."""

    def __init__(self, path: Path) -> None:
        """Reads the file and truncates a partially written last row.

        Raises:
            ConfigError: a row is invalid, or the file can't be written.
        """
        self.path = path
        self._results: dict[ResultKey, SampleResult] = {}
        self._attempted: set[ResultKey] = set()
        for number, line in enumerate(read_complete_lines(path), 1):
            result = self._parse_row(line, number)
            self._results[result.key] = result

    def find(self, key: ResultKey) -> SampleResult | None:
        """Returns the result of `key`, or `None` if it has to be computed; failures are retried once per process."""
        result = self._results.get(key)
        return None if result is None or (result.error is not None and key not in self._attempted) else result

    def append(self, result: SampleResult) -> None:
        """Appends a result to the file, before anything else is paid for."""
        self._results[result.key] = result
        self._attempted.add(result.key)
        with writing_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(result.model_dump_json(exclude_defaults=True) + "\n")

    def _parse_row(self, line: bytes, number: int) -> SampleResult:
        try:
            return SampleResult.model_validate_json(line)
        except ValidationError as error:
            raise ConfigError(
                f"line {number} of {str(self.path)!r} is no row of a bench; name another folder with --out"
            ) from error
