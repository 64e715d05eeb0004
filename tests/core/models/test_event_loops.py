"""A Conductor over a vendor's adapter follows its plans, whatever event loops and threads ask it at the same time."""

from __future__ import annotations

import asyncio
import gc
import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rl_conductor._internal.sync import run_sync
from rl_conductor.conductor import Conductor
from rl_conductor.models import Model, model
from rl_conductor.trace.trace import Trace

from .wire.base import Said, Seen
from .wire.openai import OpenAIWire

STEPS = [{"subtask": "Draft.", "worker": 0, "access": []}, {"subtask": "Answer.", "worker": 1, "access": ["all"]}]
PLAN = Said(pieces=(json.dumps({"reasoning": "Two steps.", "steps": STEPS}),))


class PlanningWire(OpenAIWire):
    """OpenAI's protocol; `planner` plans, and every other model says its name."""

    def whole(self, seen: Seen, said: Said) -> Any:
        """A `chat.completion`."""
        return super().whole(seen, self._said(seen))

    def events(self, seen: Seen, said: Said) -> list[str]:
        """Its chunks."""
        return super().events(seen, self._said(seen))

    def _said(self, seen: Seen) -> Said:
        return PLAN if seen.scenario == "planner" else Said(pieces=(seen.scenario,))


@pytest.fixture
def wire() -> Iterator[PlanningWire]:
    with PlanningWire.running() as service:
        yield service


Ask = Callable[[Conductor], Trace]
SYNC: tuple[Ask, ...] = (lambda conductor: conductor.run_sync("hi"), lambda conductor: asyncio.run(conductor.run("hi")))


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # event loops that are closed leave their connections open
def test_calls_of_every_kind_follow_their_plans(wire: PlanningWire) -> None:
    def at_the_wire(name: str) -> Model:
        return model(f"openai:{name}", base_url=f"{wire.url}/v1", api_key="none", dialect="openai")

    conductor = Conductor(at_the_wire("planner"), {"a": at_the_wire("drafter"), "b": at_the_wire("writer")})
    sources = Counter[tuple[str, str]]()

    def count(*traces: Trace) -> None:
        sources.update((trace.rounds[0].plan.source, trace.text) for trace in traces)

    async def at_once() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(4):
            count(await conductor.run("hi"), conductor.run_sync("hi"))
            calls = [loop.run_in_executor(threads, ask, conductor) for ask in (*SYNC, *SYNC)]
            count(*await asyncio.gather(*calls, conductor.run("hi"), conductor.run("hi")))
        await conductor.aclose()

    with ThreadPoolExecutor(4) as threads:
        asyncio.run(at_once())
    count(*(ask(conductor) for _ in range(4) for ask in SYNC))
    run_sync(conductor.aclose())
    gc.collect()
    assert sources == {("planner", "writer"): 4 * 8 + 8}
