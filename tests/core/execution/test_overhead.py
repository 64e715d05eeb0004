"""The overhead of a run: calls of our functions, and garbage."""

from __future__ import annotations

import gc
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import rl_conductor
from rl_conductor import Completion, Conductor, Message, Request, Step, Usage, WorkerPool, Workflow
from rl_conductor.models.scripted import ALL
from rl_conductor.types import FREE, Delta

SOURCE = str(Path(rl_conductor.__file__).parent)
WORKFLOW = Workflow(
    steps=(
        Step(subtask="Name candidates.", worker="w"),
        Step(subtask="Check them.", worker="w"),
        Step(subtask="Answer.", worker="w", access=frozenset({0, 1})),
    )
)
MAX_CALLS = 500
"""Of our own functions, in a run of this workflow. More is not wrong, but find out why before you raise it."""


class Noop:
    """A model that replies at once."""

    name = "noop"
    price = FREE
    capabilities = ALL
    reply = Completion(message=Message.assistant("ok"), usage=Usage(), model="noop")

    async def complete(self, _: Request) -> Completion:
        """Returns the reply."""
        return self.reply

    async def stream(self, _: Request) -> AsyncGenerator[Delta, None]:
        """Yields the reply."""
        yield Delta(completion=self.reply)

    async def aclose(self) -> None:
        """Has nothing to close."""


def conductor() -> Conductor:
    return Conductor(Noop(), WorkerPool({"w": Noop()}), access="positional")


@contextmanager
def count_calls() -> Iterator[list[str]]:
    """Collects the names of our functions that are called in this block."""
    names: list[str] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            names.append(frame.f_code.co_qualname)

    previous = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield names
    finally:
        sys.setprofile(previous)


@contextmanager
def saved_garbage() -> Iterator[list[object]]:
    """Collects the objects that only the collector of cycles frees."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    garbage: list[object] = []
    try:
        yield garbage
        gc.collect()
        garbage += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def test_a_finished_run_is_freed_without_the_garbage_collector() -> None:
    made = conductor()
    await made.run("Which algorithm?", workflow=WORKFLOW)
    with saved_garbage() as garbage:
        await made.run("Which algorithm?", workflow=WORKFLOW)
    assert [type(thing).__name__ for thing in garbage if type(thing).__module__.startswith("rl_conductor")] == []


async def test_a_run_takes_few_calls_of_our_functions() -> None:
    made = conductor()
    await made.run("Which algorithm?", workflow=WORKFLOW)  # fills caches
    with count_calls() as names:
        await made.run("Which algorithm?", workflow=WORKFLOW)
    assert "StepRun.run" in names
    assert len(names) <= MAX_CALLS


async def test_events_are_created_only_for_a_listener() -> None:
    made, events = conductor(), list[object]()
    with count_calls() as without:
        await made.run("Which algorithm?", workflow=WORKFLOW)
    with count_calls() as with_listener:
        await made.run("Which algorithm?", workflow=WORKFLOW, on_event=events.append)
    emitting = "StepRun._emit_start"
    assert (without.count(emitting), with_listener.count(emitting)) == (0, 3)
    assert len(events) == 9  # a plan, three steps that start and finish, the answer and the end
