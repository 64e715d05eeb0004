"""Loads the rows of a data set from the model hub or a local file and builds a task of them."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, TextIO

from rl_conductor._internal.formatting import counted
from rl_conductor._internal.io import reading_errors
from rl_conductor.errors import ConfigError
from rl_conductor.scoring import Sample, Scorer, Split, Task, split_of

DataRow = dict[str, Any]
NumberedRow = tuple[int, DataRow]
"""A row with its number: of the line in a JSON Lines file, of the row as spreadsheets show it in a table."""
TABLE_SUFFIXES = (".csv", ".tsv")
SPREADSHEET_SUFFIXES = (".xlsx", ".xls", ".ods")
SAVE_AS_CSV = 'in a spreadsheet, save the questions as "CSV UTF-8", with the names of the columns in the first row'
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
"""Values in an error of a row, without which equal kinds of errors have equal texts."""
MAX_KINDS = 3
"""Maximum number of wrong rows that an error describes, each of another kind."""
MAX_WRONG_ROWS = 10
"""Maximum number of further wrong rows whose numbers an error lists."""
SEPARATOR_LINE = re.compile(r"sep=.\s*")
"""The first line that Excel writes and reads, and that is no row: it names the separator."""
OPEN_QUOTE = "unexpected end of data"
"""The `csv` module's error at the end of a file within quotes."""
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
    rows = enumerate(_load_from_hub(data), start=1) if path is None else _read_file(Path(path).expanduser())
    samples: list[Sample] = []
    wrong: dict[int, Exception] = {}
    for index, (number, row) in enumerate(rows):
        try:
            samples.append(to_sample(row, index))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            wrong[number] = error
    if wrong:
        # A questions file is the data set itself, so it cannot be the wrong file.
        doubt = "" if source == data.repository else f"; is it really {name}?"
        raise ConfigError(_describe_wrong_rows(wrong, source) + doubt) from next(iter(wrong.values()))
    in_split = tuple(sample for sample in samples if split in (None, split_of(sample.contrast or sample.id)))
    return Task(name, in_split, scorer)


def _describe_wrong_rows(wrong: dict[int, Exception], source: str) -> str:
    """Describes the first wrong row of each kind, and lists the numbers of the others."""
    kinds: dict[str, tuple[int, str]] = {}
    for number, error in wrong.items():
        problem = f"has no {error}" if isinstance(error, KeyError) else f"is not as expected: {error}"
        kinds.setdefault(QUOTED.sub("", problem), (number, problem))
    described = dict([*kinds.values()][:MAX_KINDS])
    (first, problem), *further = described.items()
    text = "; ".join([f"row {first} of {source!r} {problem}", *(f"row {row} {reason}" for row, reason in further)])
    others = [number for number in wrong if number not in described]
    if not others:
        return text
    numbers = ", ".join(map(str, others[:MAX_WRONG_ROWS]))
    more = ", ..." if len(others) > MAX_WRONG_ROWS else ""
    return f"{text}; {counted(len(others), 'more row')} can't be used either: {numbers}{more}"


def _read_file(path: Path) -> Iterator[NumberedRow]:
    suffix = path.suffix.lower()
    if suffix in SPREADSHEET_SUFFIXES:
        raise ConfigError(f"{str(path)!r} is a spreadsheet, which can't be read: {SAVE_AS_CSV}")
    with reading_errors(path):
        if suffix == ".parquet":
            yield from enumerate(_read_parquet(path), start=1)
            return
        is_table = suffix in TABLE_SUFFIXES
        with path.open(encoding="utf-8-sig", newline="") as file:
            try:
                yield from _read_table(file, path) if is_table else _read_json_lines(file, path)
            except UnicodeDecodeError as error:
                hint = f": {SAVE_AS_CSV}" if is_table else "; the formats are JSON Lines, CSV and Parquet"
                raise ConfigError(f"can't read {str(path)!r}: it is not text in UTF-8{hint}") from error


def _read_table(file: TextIO, path: Path) -> Iterator[NumberedRow]:
    """Reads rows separated by commas, semicolons or tabs, whichever the line of names has most of.

    Empty rows are left out, and so is Excel's first line that names the separator, which is no row of the sheet.
    """
    line = file.readline()
    if SEPARATOR_LINE.fullmatch(line):
        line = file.readline()
    delimiter = max(",;\t", key=line.count)
    csv.field_size_limit(MAX_CELL_CHARS)
    reader = csv.reader(chain([line], file), delimiter=delimiter, strict=True)
    number = 1
    try:
        names = next(reader, [])
        for number, cells in enumerate(reader, start=2):
            if any(cells[len(names) :]):
                raise ConfigError(
                    f"row {number} of {str(path)!r}, which begins with {cells[0]!r}, has more cells than the row of "
                    f"names: put texts that contain {delimiter!r} in double quotes"
                )
            if any(cells):
                yield number, dict(zip_longest(names, cells[: len(names)]))
    except csv.Error as error:
        if str(error) == OPEN_QUOTE:  # all further rows would be part of the text
            problem = "begins a text with a double quote, and none ends it; write two for one within a text"
            raise ConfigError(f"row {number + 1} of {str(path)!r} {problem}") from error
        raise ConfigError(f"line {reader.line_num} of {str(path)!r} can't be read as CSV: {error}") from error


def _read_json_lines(lines: Iterable[str], path: Path) -> Iterator[NumberedRow]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            hint = "; write one object per line, without brackets around them" if line.lstrip()[0] == "[" else ""
            try:
                row = json.loads(line.rstrip())
            except (ValueError, RecursionError) as error:
                problem = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
                raise ConfigError(f"line {number} of {str(path)!r} is not JSON: {problem}{hint}") from error
            if not isinstance(row, dict):
                raise ConfigError(f"line {number} of {str(path)!r} is no JSON object{hint}")
            yield number, row


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
