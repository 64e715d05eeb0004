"""Sync code over the async inside: one loop for all, and Ctrl-C that waits for the clean-up."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from core.runs import SOON, plan, pool_of
from rl_conductor._internal.sync import run_sync
from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConfigError
from rl_conductor.models.scripted import ScriptedModel


async def value(what: int) -> int:
    await asyncio.sleep(0)
    return what


def test_the_result_comes_back() -> None:
    assert run_sync(value(7)) == 7


def test_an_exception_comes_back_too() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_sync(fails())


def test_a_cancellation_from_within_comes_back_too() -> None:
    async def gives_up() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_sync(gives_up())


def test_all_threads_share_one_loop_and_run_at_the_same_time() -> None:
    together = threading.Barrier(8)

    async def loop_of() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def call(_: int) -> asyncio.AbstractEventLoop:
        together.wait(SOON)
        return run_sync(loop_of())

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(call, range(8)))) == 1
    assert sum(thread.name == "rl-conductor" for thread in threading.enumerate()) == 1


def test_a_conductor_runs_from_several_threads_at_once() -> None:
    model = ScriptedModel("ok", delay=0.02)
    conductor = Conductor(ScriptedModel(lambda _: plan((0, "x", [])), name="p"), pool_of(a=model))

    with ThreadPoolExecutor(6) as threads:
        texts = list(threads.map(lambda number: conductor.run_sync(f"What is {number}?").text, range(6)))

    assert texts == ["ok"] * 6
    assert model.peak > 1


async def test_sync_code_inside_a_running_loop_works_too() -> None:
    assert run_sync(value(1)) == 1  # as in a notebook


async def test_sync_code_on_the_background_loop_itself_is_refused_rather_than_stuck() -> None:
    async def nested() -> int:
        return run_sync(value(1))

    with pytest.raises(ConfigError, match="await the async method"):
        run_sync(nested())


def script(body: str) -> subprocess.Popen[str]:
    lead = "import asyncio, os, sys, time\nfrom rl_conductor._internal.sync import run_sync\n"
    command = [sys.executable, "-W", "error", "-c", lead + textwrap.dedent(body)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


CLEANS_UP = """
async def work():
    print("begun", flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        print("cleaning up", flush=True)
        await asyncio.sleep(0.2)
        print("cleaned up", flush=True)
try:
    run_sync(work())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_cancels_and_waits_for_the_clean_up() -> None:
    process = script(CLEANS_UP)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"

    process.send_signal(signal.SIGINT)

    out, err = process.communicate(timeout=SOON)
    assert (out, err) == ("cleaning up\ncleaned up\ninterrupted\n", "")


def test_a_second_ctrl_c_does_not_wait() -> None:
    process = script(CLEANS_UP.replace("0.2", "600"))
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"

    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "cleaning up\n"
    process.send_signal(signal.SIGINT)

    out, _ = process.communicate(timeout=SOON)
    assert out == "interrupted\n"


def test_ctrl_c_before_the_work_starts_does_not_hang() -> None:
    process = script(
        """
        import signal
        from rl_conductor._internal.sync import _background_loop
        async def work(): await asyncio.sleep(60)
        run_sync(asyncio.sleep(0))
        loop = _background_loop()
        def starts():
            return any(getattr(handle._callback, "__name__", "") == "start" for handle in list(loop._ready))
        def interrupt():
            while not starts():  # until the main thread has asked for the start and waits
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
        loop.call_soon_threadsafe(interrupt)
        try:
            run_sync(work())
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """
    )

    out, err = process.communicate(timeout=SOON)
    assert (out, err) == ("interrupted\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_starts_a_loop_of_its_own() -> None:
    process = script(
        """
        import warnings
        async def seven(): return 7
        run_sync(seven())
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
        if os.fork() == 0:
            print(run_sync(seven()), flush=True)
            os._exit(0)
        os.wait()
        """
    )

    out, err = process.communicate(timeout=SOON)
    assert (out, err) == ("7\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_that_a_run_forks_starts_a_loop_of_its_own() -> None:
    process = script(
        """
        import warnings
        async def seven(): return 7
        async def fork():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
            if os.fork() == 0:
                print(run_sync(seven()), flush=True)
                os._exit(0)
            os.wait()
        run_sync(fork())
        """
    )

    out, err = process.communicate(timeout=SOON)
    assert (out, err) == ("7\n", "")


@pytest.mark.parametrize("ends", [SystemExit, KeyboardInterrupt])
def test_what_would_end_the_loop_is_raised_to_the_caller_and_the_loop_goes_on(ends: type[BaseException]) -> None:
    async def work() -> None:
        raise ends

    async def work_in_a_task() -> None:
        await asyncio.create_task(work())

    async def after() -> str:
        return "still there"

    for each in (work, work_in_a_task):
        with pytest.raises(ends):
            run_sync(each())
        assert run_sync(after()) == "still there"
