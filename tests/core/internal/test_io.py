"""What a user is told of files that can't be opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_conductor._internal.io import read_text, reading, writable, writing, written
from rl_conductor.errors import ConfigError


def test_a_file_that_is_not_there_is_named_with_the_systems_own_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^can't read '.*/nowhere\.txt': No such file or directory$"):
        read_text(tmp_path / "nowhere.txt")


def test_a_file_that_is_no_text_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(b"\xff\xd8")
    with pytest.raises(ConfigError, match=r"can't read '.*/picture': it is not text"):
        read_text(tmp_path / "picture")


def test_an_error_without_the_systems_words_is_told_by_its_own() -> None:
    with pytest.raises(ConfigError, match=r"^can't read 'data': no such table$"), reading("data"):
        raise OSError("no such table")


def test_an_error_that_is_about_no_file_passes_untouched() -> None:
    with pytest.raises(ValueError, match="7"), reading("data"), writing("data"):
        raise ValueError("7")


def test_a_file_is_known_to_be_writable_before_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("as it was")

    assert writable(tmp_path / "kept").read_text() == "as it was"
    with pytest.raises(ConfigError, match=r"^can't write '.*/no/kept': No such file or directory$"):
        writable(tmp_path / "no" / "kept")


def test_a_file_is_written_line_by_line(tmp_path: Path) -> None:
    with written(tmp_path / "lines") as write:
        write("é")
        write("two")

    assert (tmp_path / "lines").read_bytes() == "é\ntwo\n".encode()


def test_what_fails_while_a_file_is_written_is_not_told_as_its_own_failure(tmp_path: Path) -> None:
    with pytest.raises(ConnectionResetError), written(tmp_path / "lines"):
        raise ConnectionResetError("the database has gone")
    with pytest.raises(ConfigError, match="can't write '/dev/full'"), written(Path("/dev/full")) as write:
        write("one")
