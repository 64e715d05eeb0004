"""`./check` itself, in a copy of the tree where all tools are stand-ins: what fails must make it fail."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[1] / "check"
TOOLS = ("coverage", "lint-imports", "mypy", "pytest", "ruff", "uv")
SCRIPTS = ("chromium", "docs", "frameworks", "helm", "inspect", "torch", "verifiers", "vllm", "wheels")

STAND_IN = """#!/bin/sh
case "{failing}" in
    "{name} once") [ -e {name}.ran ] || {{ touch {name}.ran; exit 1; }} ;;
    {name} | "{name} $1") exit 1 ;;
esac
"""


def copy(folder: Path, *, failing: str | None = None) -> Path:
    """A tree whose tools and scripts all succeed but for one, which fails always or, as `NAME once`, at first."""
    shutil.copy(CHECK, folder / "check")
    (folder / "constraints.txt").write_text("")
    files = {tool: folder / ".venv" / "bin" / tool for tool in TOOLS}
    files |= {script: folder / "tests" / "environments" / f"{script}.sh" for script in SCRIPTS}
    for name, path in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STAND_IN.format(name=name, failing=failing))
        path.chmod(0o755)
    return folder


def checked(folder: Path, *command: str) -> int:
    return subprocess.run([folder / "check", *command], capture_output=True, check=False).returncode


def test_all_is_well_where_everything_succeeds(tmp_path: Path) -> None:
    tree = copy(tmp_path)
    assert [checked(tree), checked(tree, "lint"), checked(tree, "test")] == [0, 0, 0]


@pytest.mark.parametrize("failing", ["coverage run", "coverage report", "ruff format", *TOOLS, *SCRIPTS])
def test_whatever_fails_makes_the_whole_fail(tmp_path: Path, failing: str) -> None:
    assert checked(copy(tmp_path, failing=failing)) != 0


@pytest.mark.parametrize(
    "failing", ["pytest --numprocesses", "vllm setup", "docs once", "frameworks once", "vllm once"]
)
def test_what_fails_beside_other_work_may_succeed_alone(tmp_path: Path, failing: str) -> None:
    assert checked(copy(tmp_path, failing=failing)) == 0


def test_tests_that_fail_beside_other_work_run_once_more_alone(tmp_path: Path) -> None:
    tree = copy(tmp_path, failing="pytest --last-failed")
    assert checked(tree) == 0
    (tree / ".venv/bin/pytest").write_text('#!/bin/sh\ncase "$1" in --numprocesses | --last-failed) exit 1 ;; esac\n')
    assert checked(tree) != 0


def test_a_part_fails_with_its_tool(tmp_path: Path) -> None:
    assert checked(copy(tmp_path, failing="mypy"), "lint") != 0


def test_tests_that_fail_are_not_made_good_by_a_report_that_succeeds(tmp_path: Path) -> None:
    assert checked(copy(tmp_path, failing="coverage run"), "test") != 0


def test_some_tests_are_run_without_a_report_on_all(tmp_path: Path) -> None:
    assert checked(copy(tmp_path, failing="coverage"), "test", "-k", "x") == 0
    assert checked(copy(tmp_path, failing="pytest"), "test", "-k", "x") != 0
