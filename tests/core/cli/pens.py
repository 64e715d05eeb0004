"""A conductor over two scripted workers, which the tests of commands that serve one ask about pens."""

from __future__ import annotations

from typing import Any

from core.runs import plan
from rl_conductor import Conductor, Limits, Price, ScriptedModel, WorkerPool
from rl_conductor.types import Completion, Message, Request, Usage

TWO = plan((0, "Look it up.", []), (1, "Answer.", ["all"]))


def team(final: Any = "17 pens.", *, plan: str = TWO, limits: Limits | None = None) -> Conductor:
    """Returns a conductor that always writes `plan`; its first worker looks up 17, and the second one answers."""

    def look(_: Request) -> Completion:
        usage = Usage(input_tokens=1000, output_tokens=10)
        return Completion(message=Message.assistant("17"), model="look-1", usage=usage)

    workers = {"look": ScriptedModel(look, price=Price(input=2, output=1)), "final": ScriptedModel(final)}
    return Conductor(ScriptedModel(lambda _: plan), WorkerPool(workers), limits=limits)
