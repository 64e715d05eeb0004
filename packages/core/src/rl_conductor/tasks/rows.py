"""Rows of a data set, from the model hub or from a local file of the same shape, and the task that is made of them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_conductor.errors import ConfigError
from rl_conductor.files import reading
from rl_conductor.tasks.base import Sample, Scorer, Split, Task, split_of

DataRow = dict[str, Any]
EXTRA = "reading data sets needs {}: pip install 'rl-conductor[datasets]'"


@dataclass(frozen=True)
class HubData:
    """Where a data set lies on the hub."""

    repository: str
    config: str | None = None
    split: str = "test"
    files: tuple[str, ...] = ()
    """JSON lines to read in place of what the hub makes of the repository."""


def loaded(
    name: str,
    data: HubData,
    make: Callable[[DataRow, int], Sample],
    scorer: Scorer,
    *,
    path: str | Path | None = None,
    split: Split | None = None,
) -> Task:
    """The task of a data set.

    Args:
        name: what it is called.
        data: where it lies on the hub.
        make: a row and its number to a sample; what it misses in a row it may meet as `KeyError`.
        scorer: scores replies.
        path: a local `.jsonl`, `.csv` or `.parquet` file of the same shape, in place of the hub.
        split: one part of it only, by a hash of the samples' ids.

    Raises:
        ConfigError: a library or the data is missing, or a row has another shape.
    """
    source = data.repository if path is None else str(path)
    rows = _from_hub(data) if path is None else _from_file(Path(path).expanduser())
    samples = []
    for number, row in enumerate(rows):
        try:
            samples.append(make(row, number))
        except (KeyError, IndexError, TypeError, ValueError) as wrong:
            what = f"has no {wrong}" if isinstance(wrong, KeyError) else f"is not as expected: {wrong}"
            raise ConfigError(f"row {number + 1} of {source!r} {what}; is it really {name}?") from wrong
    kept = tuple(one for one in samples if split is None or split_of(one.contrast or one.id) == split)
    return Task(name, kept, scorer)


def _from_file(path: Path) -> Iterator[DataRow]:
    with reading(path):
        if path.suffix == ".parquet":
            yield from _parquet(path)
        else:
            with path.open(encoding="utf-8", newline="") as file:
                yield from csv.DictReader(file) if path.suffix == ".csv" else _json_lines(file, path)


def _json_lines(lines: Iterable[str], path: Path) -> Iterator[DataRow]:
    for number, line in enumerate(lines):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"line {number + 1} of {str(path)!r} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ConfigError(f"line {number + 1} of {str(path)!r} is no JSON object")
            yield row


def _parquet(path: Path) -> Iterator[DataRow]:
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415 (only this kind of file needs it)
    except ImportError as missing:
        raise ConfigError(EXTRA.format("pyarrow")) from missing
    try:
        yield from parquet.read_table(path).to_pylist()
    except ArrowException as wrong:
        raise ConfigError(f"{str(path)!r} can't be read as Parquet: {wrong}") from wrong


def _from_hub(data: HubData) -> Iterable[DataRow]:
    try:
        from datasets import load_dataset  # noqa: PLC0415 (heavy, and a local file needs none of it)
    except ImportError as missing:
        raise ConfigError(EXTRA.format("datasets")) from missing
    where = [f"hf://datasets/{data.repository}/{file}" for file in data.files]
    try:
        if where:
            found: Iterable[DataRow] = load_dataset("json", data_files=where, split="train")
        else:
            found = load_dataset(data.repository, data.config, split=data.split)
    except Exception as error:  # the hub's libraries raise of every kind: no network, no access, no such set
        raise ConfigError(
            f"the hub did not give {data.repository!r}: {error}; give a local file of the same shape as path=..."
        ) from error
    return found
