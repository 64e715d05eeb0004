"""The files of rows that a bench and a learning run resume from."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_conductor import ConfigError
from rl_conductor_training.bench.results import ResultFile
from rl_conductor_training.learn.experience import Experience
from rl_conductor_training.row_file import Row, RowFile


class Rows(RowFile[Row]):
    row_type = Row
    contents = "a test"


def test_a_failed_run_is_repeated_once_per_process(tmp_path: Path) -> None:
    file = Rows(tmp_path / "new" / "rows.jsonl")
    right, failed = Row(key="right"), Row(key="failed", error="out of order")
    for row in (right, failed):
        file.append(row)
    assert (file.find("right"), file.find("failed"), file.find("other")) == (right, failed, None)
    again = Rows(file.path)
    assert (again.find("right"), again.find("failed"), len(again)) == (right, None, 2)
    again.append(failed)
    assert again.find("failed") == failed


def test_half_of_a_row_is_removed(tmp_path: Path) -> None:
    file = Rows(tmp_path / "rows.jsonl")
    file.append(Row(key="whole"))
    whole = file.path.read_text()
    file.path.write_text(whole + '{"key": "ha')
    assert len(Rows(file.path)) == 1
    assert file.path.read_text() == whole


@pytest.mark.parametrize(("kind", "contents"), [(ResultFile, "a bench"), (Experience, "experience")])
def test_another_file_is_refused(tmp_path: Path, kind: type[RowFile[Row]], contents: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("{}\n")
    with pytest.raises(ConfigError, match=rf"line 1 of .* is not a row of {contents}; name another folder with --out"):
        kind(path)
