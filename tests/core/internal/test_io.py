"""Error messages for files that can't be read or written."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rl_conductor._internal.io import (
    check_writable,
    open_for_writing,
    read_text,
    reading_errors,
    write_text,
    writing_errors,
)
from rl_conductor.errors import ConfigError


def test_a_missing_file_is_reported_with_its_path_and_the_os_message(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^can't read '.*/nowhere\.txt': No such file or directory$"):
        read_text(tmp_path / "nowhere.txt")


def test_a_binary_file_is_reported_as_not_text(tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(b"\xff\xd8")
    with pytest.raises(ConfigError, match=r"can't read '.*/picture': it is not text"):
        read_text(tmp_path / "picture")


def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "from-windows").write_bytes(b"\xef\xbb\xbfname = 1\r\n")
    assert read_text(tmp_path / "from-windows") == "name = 1\n"


def test_an_error_without_an_os_message_is_reported_with_its_own_text() -> None:
    with pytest.raises(ConfigError, match=r"^can't read 'data': no such table$"), reading_errors("data"):
        raise OSError("no such table")


def test_other_errors_pass_through_unchanged() -> None:
    with pytest.raises(ValueError, match="7"), reading_errors("data"), writing_errors("data"):
        raise ValueError("7")


def test_check_writable_keeps_the_content(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("as it was")

    assert check_writable(tmp_path / "kept").read_text() == "as it was"
    with pytest.raises(ConfigError, match=r"^can't write '.*/no/kept': No such file or directory$"):
        check_writable(tmp_path / "no" / "kept")


def test_check_writable_leaves_no_empty_file(tmp_path: Path) -> None:
    check_writable(tmp_path / "later")
    assert list(tmp_path.iterdir()) == []


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Lets files grow to `size` bytes only, as on a disk that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_that_does_not_fit_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("as it was")
    with room_for(1000), pytest.raises(ConfigError, match=r"^can't write '.*/old': File too large$"):
        write_text(tmp_path / "old", "x" * 5000)
    with room_for(1000), pytest.raises(ConfigError):
        write_text(tmp_path / "new", "x" * 5000)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"old": "as it was"}


def test_links_and_devices_are_written_through(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "target")
    write_text(tmp_path / "link", "é")
    assert (tmp_path / "folder" / "target").read_text() == "é"
    assert (tmp_path / "link").is_symlink()
    write_text(Path("/dev/null"), "x")
    assert Path("/dev/null").is_char_device()


def test_a_file_is_written_line_by_line(tmp_path: Path) -> None:
    with open_for_writing(tmp_path / "lines") as write:
        write("é")
        write("two")

    assert (tmp_path / "lines").read_bytes() == "é\ntwo\n".encode()


def test_errors_in_the_body_are_not_reported_as_write_errors(tmp_path: Path) -> None:
    with pytest.raises(ConnectionResetError), open_for_writing(tmp_path / "lines"):
        raise ConnectionResetError("the database has gone")
    with pytest.raises(ConfigError, match="can't write '/dev/full'"), open_for_writing(Path("/dev/full")) as write:
        write("one")
