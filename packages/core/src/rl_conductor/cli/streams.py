"""The program's standard streams: opens closed ones, and ends with one line if stdout can't be written."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rl_conductor._internal.io import reading_errors
from rl_conductor.cli import exit_codes
from rl_conductor.cli.output import console


class OutputError(OSError):
    """Stdout can't be written, such as on a full disk."""


OUTPUT_ERRORS = (BrokenPipeError, OutputError)
"""The errors of `OutputStream`: its reader has left, or it can't be written."""


class OutputStream(io.TextIOWrapper):
    """A stdout that raises `OutputError`, so that its errors differ from those of other files.

    A closed pipe stays a `BrokenPipeError`.
    """

    def write(self, text: str, /) -> int:
        with _output_errors():
            return super().write(text)

    def flush(self) -> None:
        """Writes the buffered text."""
        with _output_errors():
            super().flush()


@contextmanager
def _output_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(error.errno, error.strerror) from None


def prepare_streams() -> None:
    """Opens the standard streams that the caller closed, lets stdout raise `OutputError`, and reads stdin as UTF-8.

    Otherwise the next file that is opened would get the number of a closed stream. Writing to a stdout that was closed
    fails, so that no answer gets lost silently.
    """
    if sys.stdin is None:
        sys.stdin = open(_null_device(0, os.O_RDONLY), closefd=False)  # noqa: SIM115
    if isinstance(sys.stdin, io.TextIOWrapper) and not sys.stdin.isatty():
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict")  # some locales let bytes pass that are no text
    out = sys.stdout
    if out is None:
        sys.stdout = OutputStream(open(_null_device(1, os.O_RDONLY), "wb", closefd=False))  # noqa: SIM115
    elif isinstance(out, io.TextIOWrapper):  # `sys.__stdout__` keeps it; it would close the buffer at its end
        sys.stdout = OutputStream(
            out.buffer, out.encoding, "replace", line_buffering=out.line_buffering, write_through=out.write_through
        )
    if sys.stderr is None:
        sys.stderr = open(_null_device(2, os.O_WRONLY), "w", closefd=False)  # noqa: SIM115
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="replace")  # an unencodable character must not end a run


def _null_device(number: int, flags: int) -> int:
    """Opens the null device as the file descriptor `number`."""
    opened = os.open(os.devnull, flags)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
    return number


def read_stdin() -> str:
    """Reads all of stdin.

    Raises:
        ConfigError: it can't be read or is not UTF-8.
    """
    with reading_errors("stdin"):
        return sys.stdin.read()


def read_stdin_bytes() -> bytes:
    """Reads all of stdin, which may be no text. Raises `ConfigError` if it can't be read."""
    with reading_errors("stdin"):
        return sys.stdin.buffer.read()


def discard_stdout() -> None:
    """Redirects stdout to the null device, so that Python's own flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def describe_output_error(error: OSError) -> str:
    """Says why the answer could not be written."""
    if isinstance(error, BrokenPipeError):
        return "the output was closed before the answer was complete"
    return f"can't write the output: {error.strerror}"


@contextmanager
def report_output_errors() -> Iterator[None]:
    """Ends the program with exit code 1 and one line if stdout can't be written; silently if its reader has left."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()
        raise SystemExit(exit_codes.FAILURE) from None
    except OutputError as error:
        discard_stdout()
        console.fail(describe_output_error(error))
        raise SystemExit(exit_codes.FAILURE) from None
