from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_conductor import ConfigError
from rl_conductor_training.sandbox.sandbox import is_confined
from rl_conductor_training.tasks.scorers.checker_process import CheckerProcess


@pytest.fixture
def checkers() -> Iterator[list[CheckerProcess]]:
    created: list[CheckerProcess] = []
    yield created
    for checker in created:
        checker.close()


async def test_a_function_runs_in_a_persistent_process(checkers: list[CheckerProcess]) -> None:
    checkers.append(CheckerProcess("os:getpid"))
    first, again = [await checkers[0].call() for _ in range(2)]
    assert first == again != os.getpid()


async def test_an_error_in_the_process_is_raised(checkers: list[CheckerProcess]) -> None:
    checkers.append(CheckerProcess("math:sqrt"))
    with pytest.raises(ValueError, match="TypeError"):
        await checkers[0].call(x=1)


async def test_a_hanging_call_times_out_and_the_next_one_works(checkers: list[CheckerProcess]) -> None:
    started = time.monotonic()
    checkers.append(CheckerProcess("signal:pause", timeout=0.3))
    with pytest.raises(ValueError, match=r"took more than 0\.3 seconds"):
        await checkers[0].call()
    assert time.monotonic() - started < 30
    with pytest.raises(ValueError, match=r"took more than 0\.3 seconds"):
        await checkers[0].call()


async def test_a_process_that_died_between_two_calls_is_replaced(checkers: list[CheckerProcess]) -> None:
    checkers.append(CheckerProcess("os:getpid"))
    first = await checkers[0].call()
    os.kill(first, signal.SIGKILL)
    process = checkers[0]._process
    assert process is not None
    await asyncio.to_thread(process.wait)
    assert await checkers[0].call() not in (first, os.getpid())


async def test_concurrent_calls_share_a_process(checkers: list[CheckerProcess]) -> None:
    checkers.append(CheckerProcess("os:getpid"))
    assert len(set(await asyncio.gather(*(checkers[0].call() for _ in range(10))))) == 1


@pytest.mark.skipif(not is_confined(), reason="this kernel has no Landlock or seccomp")
async def test_the_process_is_confined_like_the_sandbox(checkers: list[CheckerProcess]) -> None:
    checkers.append(CheckerProcess("os:fork"))
    with pytest.raises(ValueError, match="PermissionError"):
        await checkers[0].call()


async def test_a_missing_library_is_a_configuration_error(
    checkers: list[CheckerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)
    checkers.append(CheckerProcess("rl_conductor_training.tasks.scorers.math_check:compare_values"))
    with pytest.raises(ConfigError, match=r"does not start"):
        await checkers[0].call(expected="1", reply="2")


async def test_configuration_errors_are_raised_as_such(checkers: list[CheckerProcess], tmp_path: Path) -> None:
    checkers.append(CheckerProcess("rl_conductor._internal.io:read_text"))
    for _ in range(2):
        with pytest.raises(ConfigError, match="can't read"):
            await checkers[0].call(path=str(tmp_path / "nowhere"))


async def test_a_checker_that_does_not_start_names_the_command_to_debug_it(checkers: list[CheckerProcess]) -> None:
    checkers.append(CheckerProcess("no_such_module:function"))
    with pytest.raises(
        ConfigError,
        match=r"does not start: .* -m rl_conductor_training\.tasks\.scorers\.checker_process no_such_module:func",
    ):
        await checkers[0].call()
