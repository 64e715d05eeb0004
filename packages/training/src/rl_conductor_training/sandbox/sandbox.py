"""Runs Python programs that nobody has read: in a process of their own, with bounds and almost no rights.

The program gets a fresh folder, an empty environment and this interpreter's packages. On Linux 6.2 and newer (x86-64,
arm64) the kernel itself keeps it from the network, from every file outside its folder but the interpreter's and the
system's libraries, from starting processes, and from reaching other ones; see `jail`. No root or container is needed.

What it does not protect from:
- holes of the kernel or the processor: to run what an attacker wrote for you, put a virtual machine around it;
- a full disk: each file is bounded, but there may be many until time is up;
- a busy processor and memory until the bounds are reached, times the programs that run at once (one a core);
- a program that forges the tests it is run with, when both share one process;
- reading what the interpreter's own folders hold, such as installed packages;
- on other systems, deliberate attack of any kind: there Python's audit hook stops accidents only. `confined` and
  `confinement` say which it is, and why; each `Ran` says which it was.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from math import ceil
from pathlib import Path
from typing import IO, Literal

from rl_conductor._internal.sync import PerLoop
from rl_conductor.errors import ConfigError
from rl_conductor.types import Text, Value

try:
    from rl_conductor_training.sandbox import confinement
except ImportError as missing:
    raise ConfigError("programs can't be run within bounds on this system; use Linux, macOS or WSL") from missing

MEGABYTE = 2**20
_BLOCK = re.compile(r"```[ \t]*(?:python|py)?[ \t]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL | re.IGNORECASE)


class Bounds(Value):
    """What one program may use."""

    seconds: float = 10.0
    """Wall time; the same, rounded up, bounds the processor time of all threads together."""
    memory: int = 512 * MEGABYTE
    """Bytes of address space, the interpreter's own included."""
    file_bytes: int = 16 * MEGABYTE
    """Bytes of any one file, standard output included."""
    output_chars: int = 64_000
    """How much of the output is kept."""


class Ran(Value):
    """What became of a program."""

    status: Literal["ok", "failed", "timeout"]
    """`timeout`: it used up its wall time or its processor time. `failed`: it raised, the kernel stopped it for another
    reason, or it ended with another code than 0."""
    output: Text
    """The beginning of what it wrote to standard output."""
    error: Text
    """The end of what it wrote to standard error, such as a traceback."""
    seconds: float
    confined: bool
    """Whether the kernel held it; else only Python's audit hook did."""


def program_in(reply: str) -> str:
    """The last block of code in a model's reply; the whole reply when it has none."""
    blocks: list[str] = _BLOCK.findall(reply)
    return blocks[-1] if blocks else reply.replace("```", "")


@cache
def is_confined() -> bool:
    """Whether this machine's kernel holds the programs."""
    return confinement.kernel_confines()


def describe_confinement() -> str:
    """Returns in words what confines programs on this machine, and why it is not the kernel."""
    missing = confinement.missing_confinement()
    if missing is None:
        return "programs are confined by the kernel (Landlock and seccomp)"
    return f"programs are confined by Python's audit hook only, which stops accidents but no attack: {missing}"


_slots = PerLoop(lambda: asyncio.Semaphore(os.cpu_count() or 1))


async def run_python(program: str, *, stdin: str = "", bounds: Bounds | None = None) -> Ran:
    """Run `program` as a script that reads `stdin`, and wait for its end. Cancelling stops it."""
    bounds = bounds or Bounds()
    async with _slots.get():
        with _workplace() as folder, _files(folder, stdin) as (read, output, errors):
            scratch = folder / "scratch"
            (scratch / "answer.py").write_text(program, encoding="utf-8", errors="replace")
            began = time.monotonic()
            process = await asyncio.create_subprocess_exec(
                *_command(scratch, bounds),
                env=_environment(scratch),
                stdin=read,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
            code = await _code(process, bounds.seconds)
            return Ran(
                status="timeout" if code is None else "failed" if code else "ok",
                output=_text(output, bounds.output_chars),
                error=_text(errors, bounds.output_chars, end=True),
                seconds=time.monotonic() - began,
                confined=is_confined(),
            )


async def _code(process: asyncio.subprocess.Process, seconds: float) -> int | None:
    """The code that the process ended with; `None` when it used up its wall time or its processor time."""
    try:
        async with asyncio.timeout(seconds):
            code = await process.wait()
            return None if code == -signal.SIGXCPU else code
    except TimeoutError:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _command(scratch: Path, bounds: Bounds) -> list[str]:
    numbers = (ceil(bounds.seconds), bounds.memory, bounds.file_bytes)
    return [sys.executable, "-s", "-P", "-B", confinement.__file__, str(scratch), *map(str, numbers)]


def _environment(scratch: Path) -> dict[str, str]:
    """Nothing of ours; a fixed hash seed, so that a program prints the same each time."""
    return {
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONIOENCODING": "utf-8:replace",
        "OPENBLAS_NUM_THREADS": "1",  # each thread of a pool takes address space
        "OMP_NUM_THREADS": "1",
    }


@contextmanager
def _workplace() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rl-conductor-", ignore_cleanup_errors=True) as folder:
        place = Path(folder).resolve()
        (place / "scratch").mkdir()
        yield place


@contextmanager
def _files(folder: Path, stdin: str) -> Iterator[tuple[IO[bytes], IO[bytes], IO[bytes]]]:
    """What the program reads and writes: files rather than pipes, because the kernel bounds a file's size."""
    (folder / "stdin").write_text(stdin, encoding="utf-8", errors="replace")
    read, output, errors = (folder / name for name in ("stdin", "stdout", "stderr"))
    with read.open("rb") as first, output.open("w+b") as second, errors.open("w+b") as third:
        yield first, second, third


def _text(file: IO[bytes], chars: int, *, end: bool = False) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 4 * chars, 0) if end else 0)
    text = file.read(4 * chars).decode("utf-8", errors="replace")
    return text[-chars:] if end else text[:chars]
