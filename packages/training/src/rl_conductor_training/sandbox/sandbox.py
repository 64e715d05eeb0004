"""Runs untrusted Python programs in processes of their own, with resource limits and almost no rights.

The program gets a fresh folder, an empty environment and this interpreter's packages. On Linux 6.2 and newer (x86-64,
arm64) the kernel itself denies it the network, every file outside its folder except the interpreter's and the system's
libraries, new processes, and access to other processes; see `confinement`. No root or container is needed.

It does not protect from:
- holes in the kernel or the processor: to run code written by an attacker, put a virtual machine around it;
- a full disk: each file is limited, but a program may write many;
- a busy processor and memory up to the limits, times the number of concurrent programs (one per core);
- a program that forges the tests it is run with, where both share one process;
- reading the interpreter's own folders, such as installed packages;
- on other systems, deliberate attacks of any kind: there Python's audit hook stops accidents only. `is_confined` and
  `describe_confinement` say which it is, and why; each `ProgramResult` says which one applied.
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

from rl_conductor._internal.per_loop import PerLoop
from rl_conductor.errors import ConfigError
from rl_conductor.types import Text, Value

try:
    from rl_conductor_training.sandbox import confinement
except ImportError as missing:
    raise ConfigError("this system has no resource limits for programs; use Linux, macOS or WSL") from missing

MEGABYTE = 2**20
_BLOCK = re.compile(r"```[ \t]*(?:(?:python|py)[ \t]*)?\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL | re.IGNORECASE)


class ResourceLimits(Value):
    """Resource limits of one program."""

    seconds: float = 10.0
    """Wall time. Rounded up, it is also the limit on processor time, summed over all threads."""
    memory: int = 512 * MEGABYTE
    """Bytes of address space, including the interpreter's own."""
    file_bytes: int = 16 * MEGABYTE
    """Maximum bytes of each file, including standard output."""
    output_chars: int = 64_000
    """Maximum length of the returned output, and of the returned error."""


class ProgramResult(Value):
    """The result of a program."""

    status: Literal["ok", "failed", "timeout"]
    """`timeout`: the wall time or processor time ran out. `failed`: any other exit code than 0, for example after an
    exception or when the kernel kills the process."""
    output: Text
    """The beginning of standard output."""
    error: Text
    """The end of standard error, such as a traceback."""
    seconds: float
    confined: bool
    """True if the kernel confined the program; otherwise only Python's audit hook did."""


def extract_program(reply: str) -> str:
    """Returns the last code block of a model's reply, or the whole reply if it has none."""
    blocks: list[str] = _BLOCK.findall(reply)
    return blocks[-1] if blocks else reply.replace("```", "")


@cache
def is_confined() -> bool:
    """True if this machine's kernel confines the programs."""
    return confinement.can_kernel_confine()


def describe_confinement() -> str:
    """Describes the confinement of programs on this machine, and why it is not the kernel's where it is not."""
    missing = confinement.find_missing_feature()
    if missing is None:
        return "programs are confined by the kernel (Landlock and seccomp)"
    return f"programs are confined by Python's audit hook only, which stops accidents but not attacks: {missing}"


_slots = PerLoop(lambda: asyncio.Semaphore(os.cpu_count() or 1))


async def run_python(program: str, *, stdin: str = "", limits: ResourceLimits | None = None) -> ProgramResult:
    """Runs `program` as a script with the text `stdin` on standard input; cancelling kills it."""
    limits = limits or ResourceLimits()
    async with _slots.get():
        with _temporary_folder() as folder, _standard_streams(folder, stdin) as (stdin_file, output, errors):
            scratch = folder / "scratch"
            (scratch / "answer.py").write_text(program, encoding="utf-8", errors="replace")
            started = time.monotonic()
            process = await asyncio.create_subprocess_exec(
                *_command(scratch, limits),
                env=_environment(scratch),
                stdin=stdin_file,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
            exit_code = await _wait_for_exit(process, limits.seconds)
            return ProgramResult(
                status="timeout" if exit_code is None else "failed" if exit_code else "ok",
                output=_read_text(output, limits.output_chars),
                error=_read_text(errors, limits.output_chars, end=True),
                seconds=time.monotonic() - started,
                confined=is_confined(),
            )


async def _wait_for_exit(process: asyncio.subprocess.Process, seconds: float) -> int | None:
    """Returns the exit code; `None` if the wall time or processor time ran out."""
    try:
        async with asyncio.timeout(seconds):
            exit_code = await process.wait()
            return None if exit_code == -signal.SIGXCPU else exit_code
    except TimeoutError:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _command(scratch: Path, limits: ResourceLimits) -> list[str]:
    arguments = (ceil(limits.seconds), limits.memory, limits.file_bytes)
    return [sys.executable, "-s", "-P", "-B", confinement.__file__, str(scratch), *map(str, arguments)]


def _environment(scratch: Path) -> dict[str, str]:
    """Returns an environment without our variables, and with a fixed hash seed for reproducible output."""
    return {
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONIOENCODING": "utf-8:replace",
        "OPENBLAS_NUM_THREADS": "1",  # each thread of the pool reserves address space
        "OMP_NUM_THREADS": "1",
    }


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rl-conductor-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        (folder / "scratch").mkdir()
        yield folder


@contextmanager
def _standard_streams(folder: Path, stdin: str) -> Iterator[tuple[IO[bytes], IO[bytes], IO[bytes]]]:
    """Opens files for the standard streams; not pipes, because the kernel limits the size of files only."""
    (folder / "stdin").write_text(stdin, encoding="utf-8", errors="replace")
    stdin_path, stdout_path, stderr_path = (folder / name for name in ("stdin", "stdout", "stderr"))
    with stdin_path.open("rb") as source, stdout_path.open("w+b") as output, stderr_path.open("w+b") as errors:
        yield source, output, errors


def _read_text(file: IO[bytes], chars: int, *, end: bool = False) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 4 * chars, 0) if end else 0)
    text = file.read(4 * chars).decode("utf-8", errors="replace")
    return text[-chars:] if end else text[:chars]
