"""Which steps of a plan share a graph, and which get one of their own. Pure.

LangGraph runs in supersteps: nothing of the next one begins until all of this one is done. Parts of a plan that don't
depend on each other are therefore put into subgraphs of their own, each of which has supersteps of its own, so that no
step waits for one that it does not need. That removes the waiting altogether wherever a step reads all earlier steps or
none (the default, and the paper's); plans with other access lists may keep some of it.
"""

from __future__ import annotations

from collections.abc import Collection

from rl_conductor.workflow.workflow import Workflow

Part = frozenset[int]
"""Steps by position: a single one, or several that form a subgraph."""


def parts(workflow: Workflow, steps: Collection[int]) -> list[Part]:
    """The nodes of one graph that runs these `steps`."""
    end = max(steps)
    before = frozenset(steps) - {end}
    if not before <= workflow.sources[end]:
        return [frozenset({index}) for index in sorted(steps)]
    apart = _independent(workflow, before)
    ahead = parts(workflow, apart[0]) if len(apart) == 1 else apart
    return [*ahead, frozenset({end})]


def _independent(workflow: Workflow, steps: Part) -> list[Part]:
    """`steps` in groups of which none reads another."""
    groups: list[Part] = []
    for index in sorted(steps):
        read = workflow.steps[index].access & steps
        joined = [group for group in groups if group & read]
        groups = [group for group in groups if not group & read]
        groups.append(frozenset({index}).union(*joined))
    return sorted(groups, key=min)
