from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_conductor import ConfigError
from rl_conductor_training.sandbox.sandbox import is_confined
from rl_conductor_training.tasks.scorers.checker_process import CheckerProcess


@pytest.fixture
def made() -> Iterator[list[CheckerProcess]]:
    checkers: list[CheckerProcess] = []
    yield checkers
    for checker in checkers:
        checker.close()


async def test_a_function_is_called_in_another_process_which_stays(made: list[CheckerProcess]) -> None:
    made.append(CheckerProcess("os:getpid"))
    first, again = [await made[0].call() for _ in range(2)]
    assert first == again != os.getpid()


async def test_an_error_there_is_an_error_here_and_the_process_goes_on(made: list[CheckerProcess]) -> None:
    made.append(CheckerProcess("math:sqrt"))
    with pytest.raises(ValueError, match="TypeError"):
        await made[0].call(x=1)


async def test_what_hangs_is_stopped_and_the_next_question_is_answered(made: list[CheckerProcess]) -> None:
    began = time.monotonic()
    made.append(CheckerProcess("signal:pause", timeout=0.3))
    with pytest.raises(ValueError, match=r"took more than 0\.3 seconds"):
        await made[0].call()
    assert time.monotonic() - began < 30
    with pytest.raises(ValueError, match=r"took more than 0\.3 seconds"):
        await made[0].call()


async def test_many_may_ask_at_once(made: list[CheckerProcess]) -> None:
    made.append(CheckerProcess("os:getpid"))
    assert len(set(await asyncio.gather(*(made[0].call() for _ in range(10))))) == 1


@pytest.mark.skipif(not is_confined(), reason="this kernel has no Landlock or seccomp")
async def test_what_runs_there_is_held_as_in_the_sandbox(made: list[CheckerProcess]) -> None:
    made.append(CheckerProcess("os:fork"))
    with pytest.raises(ValueError, match="PermissionError"):
        await made[0].call()


async def test_a_missing_library_is_no_verdict_on_what_is_checked(
    made: list[CheckerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)
    made.append(CheckerProcess("rl_conductor_training.tasks.scorers.math_check:compare_values"))
    with pytest.raises(ConfigError, match=r"does not start"):
        await made[0].call(expected="1", reply="2")


async def test_what_the_user_can_fix_is_told_as_such(made: list[CheckerProcess]) -> None:
    made.append(CheckerProcess("rl_conductor_training.tasks.scorers.text:validate_pattern"))
    with pytest.raises(ConfigError, match="no regular expression"):
        await made[0].call(pattern="(")
    assert await made[0].call(pattern="a") == "a"


async def test_a_checker_that_can_not_start_says_how_to_find_out_why(made: list[CheckerProcess]) -> None:
    made.append(CheckerProcess("no_such_module:function"))
    with pytest.raises(
        ConfigError,
        match=r"does not start: .* -m rl_conductor_training\.tasks\.scorers\.checker_process no_such_module:func",
    ):
        await made[0].call()
