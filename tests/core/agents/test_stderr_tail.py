"""The end of a program's stderr."""

from __future__ import annotations

import subprocess
import sys

from core.runs import SOON
from rl_conductor.agents.stderr_tail import TAIL_BYTES, StderrTail

FLOOD = "import sys; [sys.stderr.write('x' * 100_000) for _ in range(100)]; sys.stderr.write('\\nout of\\npaper')"


def test_only_the_end_of_a_flood_is_kept() -> None:
    with StderrTail() as tail:
        subprocess.run([sys.executable, "-c", FLOOD], stderr=tail.file, check=True, timeout=SOON)
        tail.file.close()
        tail._thread.join(SOON)
        assert tail.text().endswith("xxx out of paper")
        assert len(tail.text()) <= TAIL_BYTES
    assert not tail._thread.is_alive()


def test_a_program_that_said_nothing_has_no_text() -> None:
    with StderrTail() as tail:
        assert tail.text() == ""
