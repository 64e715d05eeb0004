"""Groups the steps of a plan into subgraphs.

LangGraph runs in supersteps: the next one begins when the whole current one is done. Parts of a plan that don't depend
on each other therefore become subgraphs with supersteps of their own, so that no step waits for one that it does not
read. This removes all such waiting if a step reads either all earlier steps or none (the default, as in the paper);
plans with other access lists may keep some of it.
"""

from __future__ import annotations

from collections.abc import Collection

from rl_conductor.workflow import Workflow

StepGroup = frozenset[int]
"""Positions of steps: a single one, or several that form a subgraph."""


def group_steps(workflow: Workflow, steps: Collection[int]) -> list[StepGroup]:
    """Returns the nodes of one graph that runs `steps`."""
    last = max(steps)
    earlier = frozenset(steps) - {last}
    if not earlier <= workflow.sources[last]:
        return [frozenset({index}) for index in sorted(steps)]
    groups = _independent_groups(workflow, earlier)
    nodes = group_steps(workflow, groups[0]) if len(groups) == 1 else groups
    return [*nodes, frozenset({last})]


def _independent_groups(workflow: Workflow, steps: StepGroup) -> list[StepGroup]:
    """Splits `steps` into groups that don't read each other."""
    groups: list[StepGroup] = []
    for index in sorted(steps):
        access = workflow.steps[index].access & steps
        connected = [group for group in groups if group & access]
        groups = [group for group in groups if not group & access]
        groups.append(frozenset({index}).union(*connected))
    return sorted(groups, key=min)
