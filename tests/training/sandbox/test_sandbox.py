"""Tests of hostile and harmless programs in the sandbox."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rl_conductor._internal.sync import run_sync
from rl_conductor_training.sandbox.sandbox import ResourceLimits, extract_program, is_confined, run_python

needs_kernel_confinement = pytest.mark.skipif(not is_confined(), reason="this kernel has no Landlock or seccomp")


async def test_a_program_reads_its_input_and_its_output_is_returned() -> None:
    result = await run_python("print(input()[::-1])", stdin="abc\n")
    assert (result.status, result.output, result.error) == ("ok", "cba\n", "")
    assert result.confined == is_confined()


async def test_an_error_is_returned_with_its_traceback() -> None:
    result = await run_python("print('before')\n1 / 0")
    assert (result.status, result.output) == ("failed", "before\n")
    assert result.error.strip().endswith("ZeroDivisionError: division by zero")


async def test_an_endless_loop_is_stopped_in_time() -> None:
    started = time.monotonic()
    result = await run_python("while True: pass", limits=ResourceLimits(seconds=0.5))
    assert result.status == "timeout"
    assert time.monotonic() - started < 30


LOWERS_ITS_LIMIT = "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 31))\nwhile True: pass"
IGNORES_THE_SIGNAL = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
BUSY_THREADS = """
import hashlib, threading
data = bytes(10**6)
def work():
    while True: hashlib.sha256(data)
for _ in range(4): threading.Thread(target=work).start()
"""


@pytest.mark.parametrize(
    ("program", "seconds"),
    [(LOWERS_ITS_LIMIT, 30), (IGNORES_THE_SIGNAL, 1), ("while True: pass", 1), (BUSY_THREADS, 2)],
)
async def test_a_program_that_uses_up_its_processor_time_is_a_timeout(program: str, seconds: float) -> None:
    assert (await run_python(program, limits=ResourceLimits(seconds=seconds))).status == "timeout"


async def test_cancelling_stops_the_program(tmp_path: Path) -> None:
    running = asyncio.create_task(run_python("import time\ntime.sleep(110)", limits=ResourceLimits(seconds=110)))
    await asyncio.sleep(0.3)
    started = time.monotonic()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert time.monotonic() - started < 60


async def test_memory_is_limited() -> None:
    result = await run_python("x = bytearray(10**10)")
    assert "MemoryError" in result.error


async def test_file_sizes_and_output_are_limited() -> None:
    limits = ResourceLimits(file_bytes=10_000)
    assert "File too large" in (await run_python("open('x', 'w').write('x' * 20_000)", limits=limits)).error
    result = await run_python("while True: print('x' * 1000)", limits=limits)
    assert (result.status, len(result.output)) == ("failed", 10_000)


async def test_long_output_is_truncated() -> None:
    program = "import sys\nprint('ab' * 99)\nsys.exit('cd' * 99 + 'e')"
    result = await run_python(program, limits=ResourceLimits(output_chars=5))
    assert (result.output, result.error) == ("ababa", "dcde\n")


async def test_environment_variables_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    result = await run_python("import os, sys\nprint(dict(os.environ), sys.argv, open('answer.py').read())")
    assert result.status == "ok"
    assert "secret" not in result.output


async def test_output_is_reproducible() -> None:
    outputs = {(await run_python("print({'a', 'b', 'c', 'd'})")).output for _ in range(3)}
    assert len(outputs) == 1


async def test_temporary_files_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = await run_python("open('left', 'w').write('x')\nimport os\nprint(os.getcwd())")
    assert result.output.startswith(str(tmp_path))
    assert not any(tmp_path.iterdir())  # noqa: ASYNC240 (in a test nobody waits)


@needs_kernel_confinement
@pytest.mark.parametrize(
    "program",
    [
        "import socket\nsocket.socket()",
        "import socket\nsocket.socket(socket.AF_UNIX)",
        "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:1')",
        "import ctypes\nassert ctypes.CDLL(None).socket(2, 1, 0) >= 0",
        "import ctypes\nlibc = ctypes.CDLL(None)\nassert libc.syscall(425, 8, bytes(120)) >= 0",
    ],
)
async def test_the_network_is_unreachable(program: str) -> None:
    assert (await run_python(program)).status == "failed"


@needs_kernel_confinement
@pytest.mark.parametrize(
    "program",
    [
        "import os\nwhile True: os.fork()",
        "import subprocess\nsubprocess.run(['/bin/true'])",
        "import os\nos.posix_spawn('/bin/true', ['true'], {})",
        "import multiprocessing\nmultiprocessing.Process(target=print).start()",
        "import os\nos.kill(os.getppid(), 9)",
        "import os\nos.kill(-1, 9)",
        "import fcntl, os\nfcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getppid())",
        "import fcntl, os, struct\nfcntl.ioctl(os.pipe()[0], 0x8901, struct.pack('i', os.getppid()))",
        "import os\nos.sched_setaffinity(os.getppid(), {0})",
        "import os, resource\nresource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3))",
        "import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0",
        "import ctypes\nassert ctypes.CDLL(None).ptrace(16, 1, None, None) == 0",
    ],
)
async def test_no_process_can_be_started_or_reached(program: str) -> None:
    result = await run_python(program, limits=ResourceLimits(seconds=5))
    assert result.status == "failed"


ATTACKS = (
    "print(open(f'{home}/thesis').read())",
    "print(os.listdir(home))",
    "open(f'{home}/thesis', 'w')",
    "open(f'{home}/new', 'w')",
    "os.truncate(f'{home}/thesis', 0)",
    "os.remove(f'{home}/thesis')",
    "os.rename(f'{home}/thesis', 'mine')",
    "os.link(f'{home}/thesis', 'mine')",
    "shutil.rmtree(home)",
    "os.chmod(f'{home}/thesis', 0)",
    "os.utime(f'{home}/thesis', (0, 0))",
    "print(open('/etc/passwd').read())",
    "print(open(f'/proc/{os.getppid()}/environ').read())",
    "os.symlink(f'{home}/thesis', 'link')\nprint(open('link').read())",
    "os.execv('/bin/cat', ['cat', f'{home}/thesis'])",
)


@needs_kernel_confinement
def test_the_users_files_can_be_neither_read_nor_changed(tmp_path: Path) -> None:
    thesis = tmp_path / "thesis"
    thesis.write_text("years of work")
    before = thesis.stat()
    for attack in ATTACKS:
        result = run_sync(run_python(f"import os, shutil\nhome = {str(tmp_path)!r}\n{attack}"))
        assert result.output == "", attack
    after = thesis.stat()
    assert (thesis.read_text(), after.st_mode, after.st_mtime) == ("years of work", before.st_mode, before.st_mtime)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis"]


@needs_kernel_confinement
@pytest.mark.parametrize(
    "program",
    [
        "import threading\nt = threading.Thread(target=lambda: print('here'))\nt.start()\nt.join()",
        "import asyncio\nasync def main(): print('here')\nasyncio.run(main())",
        "import shutil\nopen('a', 'w').write('here')\nshutil.copy('a', 'b')\nprint(open('b').read())",
        "import tempfile\nwith tempfile.NamedTemporaryFile('w+') as f: f.write('x')\nprint('here')",
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: str\nprint(A('here').x)",
        "import random, datetime, zoneinfo, decimal, re, json, sqlite3\nprint('here')",
        "import pydantic\nprint('here')",
    ],
)
async def test_harmless_programs_run_unchanged(program: str) -> None:
    result = await run_python(program)
    assert (result.output, result.error) == ("here\n", "")


@pytest.mark.parametrize(
    ("program", "stopped"),
    [
        ("import socket\nsocket.socket()", True),
        ("import subprocess\nsubprocess.run(['/bin/true'])", True),
        ("open('{outside}/x', 'w')", True),
        ("import shutil\nshutil.rmtree('{outside}')", True),
        ("open('x', 'w').write('x')\nimport os\nos.remove('x')", False),
        ("import json, random\nprint(json.dumps([1]))", False),
    ],
)
def test_without_kernel_confinement_an_audit_hook_stops_accidents(program: str, stopped: bool, tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "outside").mkdir()
    code = (
        f"import os\nfrom rl_conductor_training.sandbox import confinement\nos.chdir({str(tmp_path / 'inside')!r})\n"
        f"confinement.install_audit_hook({str(tmp_path / 'inside')!r})\n" + program.format(outside=tmp_path / "outside")
    )
    process = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert ("the sandbox does not allow" in process.stderr) == stopped, process.stderr
    assert (tmp_path / "outside").is_dir()


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        ("print(1)", "print(1)"),
        ("Sure:\n```python\nprint(1)\n```\nDone.", "print(1)"),
        ("```\nprint(1)\n```", "print(1)"),
        ("```py\na\n```\nthen\n```python\nb\n```", "b"),
        ("```python\nprint(1)", "print(1)"),
        ("print(1)\n```", "print(1)\n"),
    ],
)
def test_the_program_of_a_reply_is_its_last_block(reply: str, program: str) -> None:
    assert extract_program(reply) == program


@pytest.mark.timed
@pytest.mark.parametrize("hostile", ["```" + " " * 300_000, "```\n" + "\n " * 150_000, "``` " * 75_000])
def test_a_hostile_reply_takes_no_time(hostile: str) -> None:
    began = time.process_time()
    extract_program(hostile)
    assert time.process_time() - began < 1
