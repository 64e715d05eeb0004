"""The examples and the README's first command, with the embedded models."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from example_programs import PROGRAMS, REAL_MODELS
from rl_conductor.config.discovery import POOL_VARIABLE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[1]
SMALL_POOL = """
[planner]
model = "embedded:smollm2-135m"
examples = 1
steps = 2
max_tokens = 96
samples = 1

[workers.writer]
model = "embedded:smollm2-135m"
sampling = { max_tokens = 40 }
"""
"""A pool of the smallest model: the default one takes six times as long."""


@pytest.mark.parametrize("program", [path for path in PROGRAMS if path.stem in REAL_MODELS], ids=lambda path: path.stem)
def test_an_example_runs_with_embedded_models(program: Path, tmp_path: Path) -> None:
    environment = dict(os.environ)
    if program.stem != "quickstart":  # which runs as on a machine that has nothing
        environment[POOL_VARIABLE] = str(tmp_path / "pool.toml")
        (tmp_path / "pool.toml").write_text(SMALL_POOL, encoding="utf-8")
    command = [sys.executable, "-W", "error", str(program)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_first_command_of_the_readme_answers_as_shown() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^\.venv/bin/rl-conductor (ask --pool .*)$", readme, re.MULTILINE)
    program = Path(sys.executable).with_name("rl-conductor")
    done = subprocess.run([program, *shlex.split(command)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "594\n"), done.stderr
