"""The installed program in a real terminal, in pipes, and stopped in the middle."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rl_conductor.trace.trace import Trace

Pool = Callable[..., str]

SECONDS = 60.0


class Terminal:
    """A program whose three streams are a terminal; a thread reads what it shows."""

    def __init__(self, command: list[str]) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True)
        os.close(theirs)
        self.shown = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def until(self, pattern: str) -> None:
        """Return once `pattern` was shown."""
        end = time.monotonic() + SECONDS
        while not re.search(pattern, self.shown):
            assert time.monotonic() < end, f"{pattern!r} was not shown: {self.shown!r}"
            assert self.process.poll() is None or re.search(pattern, self.shown), self.shown
            time.sleep(0.02)

    def type(self, text: str) -> None:
        """Type `text`."""
        os.write(self._ours, text.encode())

    def end(self) -> int:
        """The exit code."""
        code = self.process.wait(SECONDS)
        self._reader.join()
        os.close(self._ours)
        return code

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._ours, 65536)
            except OSError as error:
                if error.errno != errno.EIO:  # what Linux says when the other end is closed
                    raise
                return
            if not piece:
                return
            self.shown += piece.decode(errors="replace")


@contextmanager
def terminal(*command: str) -> Iterator[Terminal]:
    opened = Terminal(list(command))
    try:
        yield opened
    finally:
        if opened.process.poll() is None:
            opened.process.kill()
            opened.end()


def settled(shown: str) -> str:
    """Returns the text that remains when the live picture is cleared, without colours."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.rpartition("\x1b[2K")[2]).replace("\r", "")


def test_a_terminal_shows_the_steps_while_they_run_and_then_the_answer(command: str, pool: Pool) -> None:
    with terminal(command, "ask", "--pool", pool(), "What is 6 * 7?") as opened:
        assert opened.end() == 0

    assert "planning with openai:plan-three" in opened.shown
    assert "\x1b[32m✓" in opened.shown
    lines = settled(opened.shown).strip().splitlines()
    assert lines[0] == "It is [bold]42[/bold]."
    assert lines[2].startswith("planned by openai:plan-three")
    assert lines[-1].startswith("3 steps · 2 workers")
    assert max(map(len, lines)) <= 100


def test_no_color_is_respected(command: str, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    with terminal(command, "ask", "--pool", pool(), "What is 6 * 7?") as opened:
        assert opened.end() == 0

    assert "3 steps" in opened.shown
    assert not re.search(r"\x1b\[[0-9;]*(?:3|4|9|10)[0-7]m", opened.shown)


def test_a_terminal_without_a_question_is_not_waited_for(command: str) -> None:
    with terminal(command, "ask") as opened:
        assert opened.end() == 2

    assert "no question was given" in opened.shown


def test_the_answer_appears_as_it_is_written_and_ctrl_c_says_what_was_spent(
    command: str, pool: Pool, tmp_path: Path
) -> None:
    kept = tmp_path / "run.json"
    stalling = pool("stall", planner="plan-one")
    with terminal(command, "ask", "--save", str(kept), "--pool", stalling, "What is rain?") as opened:
        opened.until("You said: ")
        opened.process.send_signal(signal.SIGINT)
        assert opened.end() == 130

    assert "Traceback" not in opened.shown
    assert "error: interrupted; spent so far: at least $0.00028 (1 call unpriced), 110 tokens, 2 calls" in settled(
        opened.shown
    )
    assert Trace.model_validate_json(kept.read_text()).error == "cancelled"


def test_sigterm_says_what_was_spent(command: str, pool: Pool) -> None:
    with terminal(command, "ask", "--pool", pool("stall", planner="plan-one"), "What is rain?") as opened:
        opened.until("You said: ")
        opened.process.send_signal(signal.SIGTERM)
        assert opened.end() == 143

    assert "Traceback" not in opened.shown
    assert "error: interrupted; spent so far: " in settled(opened.shown)


def test_sigterm_while_planning_says_what_was_spent(command: str, pool: Pool) -> None:
    with terminal(command, "plan", "--pool", pool(planner="hang"), "What is rain?") as opened:
        opened.until("planning with openai:hang")
        opened.process.send_signal(signal.SIGTERM)
        assert opened.end() == 143

    assert "error: interrupted; spent so far: " in settled(opened.shown)


def test_sigterm_ends_a_program_in_the_background_of_a_script_where_ctrl_c_is_ignored(command: str, pool: Pool) -> None:
    script = 'trap "" INT; exec "$0" ask --pool "$1" "What is rain?"'
    with terminal("sh", "-c", script, command, pool("stall", planner="plan-one")) as opened:
        opened.until("You said: ")
        opened.process.send_signal(signal.SIGINT)
        opened.process.send_signal(signal.SIGTERM)
        assert opened.end() == 143

    assert "Traceback" not in opened.shown
    assert "error: interrupted; spent so far: " in settled(opened.shown)


def test_sigterm_ends_a_chat_and_says_what_was_spent(command: str, pool: Pool) -> None:
    with terminal(command, "chat", "--pool", pool("stall", planner="plan-one")) as opened:
        opened.until("> ")
        opened.type("What is rain?\n")
        opened.until("You said: ")
        opened.process.send_signal(signal.SIGTERM)
        assert opened.end() == 143

    assert "Traceback" not in opened.shown
    assert re.search(r"0 answers · 110 tokens · at least \$0.00028", settled(opened.shown))


def test_sigterm_ends_a_chat_that_waits_for_a_question(command: str, pool: Pool) -> None:
    with terminal(command, "chat", "--pool", pool("stall", planner="plan-one")) as opened:
        opened.until("> ")
        opened.process.send_signal(signal.SIGTERM)
        assert opened.end() == 143

    assert "Traceback" not in opened.shown


def test_a_chat_goes_on_after_ctrl_c(command: str, pool: Pool) -> None:
    with terminal(command, "chat", "--pool", pool("stall", planner="plan-one")) as opened:
        opened.until("> ")
        opened.type("What is rain?\n")
        opened.until("You said: ")
        opened.process.send_signal(signal.SIGINT)
        opened.until("interrupted[^>]*> ")  # what is typed before the prompt may be discarded
        opened.type("\x04")
        assert opened.end() == 0

    assert "Traceback" not in opened.shown
    assert "0 answers" in opened.shown


def test_ctrl_c_while_planning_ends_at_once(command: str, pool: Pool) -> None:
    with terminal(command, "plan", "--pool", pool(planner="hang"), "What is rain?") as opened:
        opened.until("planning with openai:hang")
        opened.process.send_signal(signal.SIGINT)
        assert opened.end() == 130

    assert "Traceback" not in opened.shown
    assert "error: interrupted; spent so far: " in settled(opened.shown)


def test_ctrl_c_while_planning_does_not_say_that_an_answer_is_accepted(command: str, pool: Pool) -> None:
    with terminal(command, "ask", "--pool", pool(planner="hang"), "What is rain?") as opened:
        opened.until("planning with openai:hang")
        opened.process.send_signal(signal.SIGINT)
        assert opened.end() == 130

    assert "planning by openai:hang was interrupted" in settled(opened.shown)
    assert "accepted" not in opened.shown
    assert "error: interrupted; spent so far: at least $0 (1 call unpriced), 0 tokens, 1 call" in settled(opened.shown)


def test_a_reader_that_leaves_ends_the_run_quietly(command: str, pool: Pool) -> None:
    run = subprocess.Popen(
        [command, "ask", "--pool", pool(), "What is 6 * 7?"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    assert run.stderr is not None
    run.stdout.close()
    with run.stderr:
        told = run.stderr.read()

    assert run.wait(SECONDS) == 1
    assert "Traceback" not in told
    assert told.splitlines()[-1].startswith(
        "error: the output was closed before the answer was complete; spent so far: "
    )


FULL = Path("/dev/full")
"""A device that is always full."""


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
def test_an_answer_that_can_not_be_written_ends_the_run_with_the_reason(
    command: str, pool: Pool, tmp_path: Path, redirection: str
) -> None:
    trace = tmp_path / "run.json"
    reason = "No space left on device" if "full" in redirection else "Bad file descriptor"

    run = shell(f"{command} ask --save {trace} --pool {pool()} 'What is 6 * 7?' {redirection}")

    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith(f"error: can't write the output: {reason}; spent so far: ")
    assert run.stderr.count("error: ") == 1
    assert "Traceback" not in run.stderr
    assert Trace.model_validate_json(trace.read_text()).error == "cancelled"


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "line",
    [
        "{command} --version",
        "{command} --help",
        "{command} pool --pool {pool}",
        "{command} ask --json -q --pool {pool} '?'",
        "echo '?' | {command} chat -q --pool {pool}",
    ],
)
def test_output_that_can_not_be_written_is_one_line(command: str, pool: Pool, line: str) -> None:
    run = shell(f"{line.format(command=command, pool=pool())} >/dev/full")

    assert (run.returncode, run.stderr) == (1, "error: can't write the output: No space left on device\n")


def test_a_reader_that_leaves_before_the_output_is_no_error(command: str) -> None:
    run = shell(f"{{ {command} --version; echo $? >&2; }} | true")

    assert run.stderr in ("0\n", "1\n")  # 0 if the reader left after the output


def test_no_input_is_read_from_a_closed_stdin(command: str, pool: Pool) -> None:
    run = shell(f"{command} ask --pool {pool()} <&-")

    assert run.returncode == 2
    assert run.stderr.startswith("error: ")


@pytest.mark.parametrize("locale", ["", "C.UTF-8", "C"])
@pytest.mark.parametrize("arguments", ["ask", "plan", "run -", "chat -q"])
def test_input_that_is_no_text_is_one_line(
    command: str, pool: Pool, monkeypatch: pytest.MonkeyPatch, arguments: str, locale: str
) -> None:
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    monkeypatch.setenv("LC_ALL", locale)

    run = shell(f"printf 'caf\\351' | {command} {arguments} --pool {pool()}")

    assert (run.returncode, run.stderr) == (2, "error: can't read 'stdin': it is not text in UTF-8\n")


def test_a_file_from_stdin_that_is_no_text_is_one_line(command: str, pool: Pool) -> None:
    run = shell(f"printf 'caf\\351' | {command} ask -f - Hello? --pool {pool()}")

    assert (run.returncode, run.stderr) == (2, "error: can't send 'stdin': it is not an image, a PDF or UTF-8 text\n")


def test_a_question_may_begin_with_a_byte_order_mark(command: str, pool: Pool) -> None:
    run = shell(f"printf '\\357\\273\\277Why?' | {command} ask --json --pool {pool()}")

    assert json.loads(run.stdout)["request"]["messages"][0]["content"][0]["text"] == "Why?"


def shell(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", line], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def test_a_terminal_that_knows_few_letters_ends_no_run(
    command: str, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")

    run = subprocess.run(
        [command, "ask", "--pool", pool(), "?"], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )

    assert (run.returncode, run.stdout) == (0, b"It is [bold]42[/bold].\n")
