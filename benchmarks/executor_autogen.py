"""The five-step graph of `executor_overhead.py` with AutoGen, which runs it in an environment of its own.

Prints the median microseconds of processor time of a run, with the rounds and runs that are its arguments. The steps
are messages to an agent, because AutoGen's graphs of agents carry whole conversations.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time
from collections.abc import Awaitable
from dataclasses import dataclass

from autogen_core import AgentId, MessageContext, RoutedAgent, SingleThreadedAgentRuntime, message_handler

QUESTION = "Which of three sorting algorithms suits nearly sorted data?"


@dataclass
class Task:
    """The message to a worker."""

    text: str


@dataclass
class Reply:
    """The reply of a worker."""

    text: str


class Worker(RoutedAgent):  # type: ignore[misc]
    """An agent that replies immediately."""

    @message_handler  # type: ignore[untyped-decorator]
    async def answer(self, message: Task, ctx: MessageContext) -> Reply:  # noqa: ARG002
        """Replies to a task."""
        return Reply("ok")


async def main(rounds: int, runs: int) -> None:
    """Measures and prints the result."""
    runtime = SingleThreadedAgentRuntime()
    await Worker.register(runtime, "worker", lambda: Worker("worker"))
    runtime.start()

    async def ask(index: int, *seen: str) -> str:
        task = Task("\n".join((QUESTION, *seen)))
        reply: Reply = await runtime.send_message(task, AgentId("worker", f"s{index}"))
        return reply.text

    async def join(index: int, *steps: Awaitable[str]) -> str:
        return await ask(index, *await asyncio.gather(*steps))

    times = []
    for _ in range(rounds + 1):
        gc.collect()
        started = time.process_time()
        for _ in range(runs):
            await join(4, ask(2), join(3, ask(0), ask(1)))
        times.append((time.process_time() - started) / runs * 1e6)
    await runtime.stop()
    print(statistics.median(times[1:]))


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
