"""The exceptions with which workers pause the graph around the node of `create_conductor`, or hand over to its nodes.

An agent hands over by a command for its parent graph. As that is the graph of the plan's steps, which has none of the
user's nodes, the command passes through it as a `Handoff` and becomes one for the graph around the node.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from langchain_core.runnables import RunnableConfig, ensure_config
from langgraph.errors import GraphBubbleUp, ParentCommand
from langgraph.types import Command

from langchain_conductor.models.interrupts import allow_interrupts, unwrap_interrupts


class Handoff(GraphBubbleUp):
    """Carries the command of a worker that hands over through the graph of the steps."""

    def __init__(self, command: Command[str]) -> None:
        super().__init__(command)
        self.command = command


def is_subgraph(config: RunnableConfig | None = None) -> bool:
    """Whether the node's graph is part of another one; `config` is that of the running node, by default the current."""
    return "|" in ensure_config(config)["configurable"]["checkpoint_ns"]


@contextmanager
def allow_signals(config: RunnableConfig | None) -> Iterator[None]:
    """Lets workers called in this block pause the graph, and hand over if there is a graph around the node."""
    try:
        with allow_interrupts(_is_signal if is_subgraph(config) else _is_pause):
            yield
    except Handoff as handoff:
        raise ParentCommand(replace(handoff.command, graph=Command.PARENT)) from None


@contextmanager
def raise_signals() -> Iterator[None]:
    """Raises the exceptions that `allow_signals` allows to workers called in this block, which is one step."""
    try:
        with unwrap_interrupts():
            yield
    except ParentCommand as error:
        raise Handoff(error.args[0]) from None


def _is_signal(error: Exception) -> bool:
    return isinstance(error, GraphBubbleUp)


def _is_pause(error: Exception) -> bool:
    return _is_signal(error) and not isinstance(error, ParentCommand)
