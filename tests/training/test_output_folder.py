"""One process at a time writes to an output folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rl_conductor import ConfigError
from rl_conductor_training.output_folder import check_folder, lock_folder

HOLD = """
import sys
from pathlib import Path
from rl_conductor_training.output_folder import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_until_the_first_one_ends_or_dies(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(ConfigError, match=r"another process writes to .* --out"), lock_folder(tmp_path):
            pass
        other.kill()
    with lock_folder(tmp_path):
        assert (tmp_path / "rows.jsonl").read_text() == "{}"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "report").touch()
    with pytest.raises(ConfigError, match="is a file; name a folder with --out"), lock_folder(tmp_path / "report"):
        pass


def test_blocks_may_be_nested(tmp_path: Path) -> None:
    with lock_folder(tmp_path), lock_folder(tmp_path):
        (tmp_path / "rows.jsonl").write_text("{}")
    assert (tmp_path / "rows.jsonl").exists()


def test_a_folder_in_which_nothing_was_written_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "typo"
    with lock_folder(folder):
        (folder / "experience.jsonl").touch()
    assert not folder.exists()


def test_an_existing_empty_folder_remains(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        pass
    assert tmp_path.exists()


def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"can't write .*folder': '.*file' is a file"):
        check_folder(tmp_path / "file" / "folder")


def test_a_folder_without_permission_to_write_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # No permission would keep out root.
    monkeypatch.setattr("os.access", lambda path, _mode: path != tmp_path)
    with pytest.raises(ConfigError, match=rf"can't write '.*run': no permission to write in '{tmp_path}'"):
        check_folder(tmp_path / "runs" / "run")
