"""Loads the rows of a data set from the model hub or a local file and builds a task of them."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from rl_conductor._internal.io import reading_errors
from rl_conductor.errors import ConfigError
from rl_conductor.scoring import Sample, Scorer, Split, Task, split_of

DataRow = dict[str, Any]
TABLE_SUFFIXES = (".csv", ".tsv")
SURPLUS = "surplus cells"
SEPARATOR_LINE = re.compile(r"sep=.\s*")
"""The first line that Excel writes and reads, and that is no row: it names the separator."""
MAX_CELL_CHARS = 1 << 30
"""Maximum characters of a CSV cell; the default of the `csv` module is 131,072."""
MISSING_LIBRARY = "reading data sets needs {}: pip install 'rl-conductor-training[datasets]'"


@dataclass(frozen=True)
class HubDataset:
    """The location of a data set on the model hub."""

    repository: str
    config: str | None = None
    split: str = "test"
    files: tuple[str, ...] = ()
    """JSON Lines files of the repository to read instead of the hub's own configuration."""


def build_task(
    name: str,
    data: HubDataset,
    to_sample: Callable[[DataRow, int], Sample],
    scorer: Scorer,
    *,
    path: str | Path | None = None,
    split: Split | None = None,
) -> Task:
    """Builds the task of a data set.

    Args:
        name: the task's name.
        data: the location on the hub.
        to_sample: converts a row and its index; it may raise `KeyError` for a missing key.
        scorer: scores replies.
        path: a local `.jsonl`, `.csv` or `.parquet` file of the same shape, to read instead of the hub.
        split: keep one split only, assigned by a hash of the sample ids.

    Raises:
        ConfigError: a library or the data is missing, or a row has another shape.
    """
    source = data.repository if path is None else str(path)
    rows = _load_from_hub(data) if path is None else _read_file(Path(path).expanduser())
    samples = []
    for number, row in enumerate(rows):
        try:
            samples.append(to_sample(row, number))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            problem = f"has no {error}" if isinstance(error, KeyError) else f"is not as expected: {error}"
            # A questions file is the data set itself, so it cannot be the wrong file.
            doubt = "" if source == data.repository else f"; is it really {name}?"
            raise ConfigError(f"row {number + 1} of {source!r} {problem}{doubt}") from error
    in_split = tuple(sample for sample in samples if split in (None, split_of(sample.contrast or sample.id)))
    return Task(name, in_split, scorer)


def _read_file(path: Path) -> Iterator[DataRow]:
    with reading_errors(path):
        if path.suffix == ".parquet":
            yield from _read_parquet(path)
        else:
            with path.open(encoding="utf-8-sig", newline="") as file:
                is_table = path.suffix.lower() in TABLE_SUFFIXES
                yield from _read_table(file, path) if is_table else _read_json_lines(file, path)


def _read_table(file: TextIO, path: Path) -> Iterator[DataRow]:
    """Reads rows separated by commas, semicolons or tabs, whichever the line of names has most of.

    Empty rows are left out, and so is Excel's first line that names the separator.
    """
    names = file.readline()
    if SEPARATOR_LINE.fullmatch(names):
        names = file.readline()
    delimiter = max(",;\t", key=names.count)
    csv.field_size_limit(MAX_CELL_CHARS)
    reader = csv.DictReader(chain([names], file), delimiter=delimiter, restkey=SURPLUS)
    try:
        for row in reader:
            if any(row.pop(SURPLUS, ())):
                first = next(iter(row.values()))
                raise ConfigError(
                    f"the row of {str(path)!r} that begins with {first!r} has more cells than the line of names: "
                    f"put texts that contain {delimiter!r} in double quotes"
                )
            if any(row.values()):
                yield row
    except csv.Error as error:
        raise ConfigError(f"line {reader.line_num} of {str(path)!r} can't be read as CSV: {error}") from error


def _read_json_lines(lines: Iterable[str], path: Path) -> Iterator[DataRow]:
    for number, line in enumerate(lines):
        if line.strip():
            try:
                row = json.loads(line.rstrip())
            except (ValueError, RecursionError) as error:
                problem = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
                raise ConfigError(f"line {number + 1} of {str(path)!r} is not JSON: {problem}") from error
            if not isinstance(row, dict):
                hint = "; write one object per line, without brackets around them" if isinstance(row, list) else ""
                raise ConfigError(f"line {number + 1} of {str(path)!r} is no JSON object{hint}")
            yield row


def _read_parquet(path: Path) -> Iterator[DataRow]:
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415 (only Parquet files need it)
    except ImportError as error:
        raise ConfigError(MISSING_LIBRARY.format("pyarrow")) from error
    try:
        yield from parquet.read_table(path).to_pylist()
    except ArrowException as error:
        raise ConfigError(f"{str(path)!r} can't be read as Parquet: {error}") from error


def _load_from_hub(data: HubDataset) -> Iterable[DataRow]:
    try:
        from datasets import load_dataset  # noqa: PLC0415 (slow to import, and not needed for local files)
    except ImportError as error:
        raise ConfigError(MISSING_LIBRARY.format("datasets")) from error
    urls = [f"hf://datasets/{data.repository}/{file}" for file in data.files]
    try:
        if urls:
            rows: Iterable[DataRow] = load_dataset("json", data_files=urls, split="train")
        else:
            rows = load_dataset(data.repository, data.config, split=data.split)
    except Exception as error:  # any kind is raised: no network, no access, no such data set
        raise ConfigError(
            f"{data.repository!r} can't be loaded from the hub: {error}; pass a local file of its shape as path=..."
        ) from error
    return rows
