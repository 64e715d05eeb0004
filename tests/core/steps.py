"""Steps and workflows in few words, for tests of their structure."""

from __future__ import annotations

from rl_conductor.workflow.workflow import Step, Workflow


def step(worker: str = "ada", *access: int, subtask: str = "Do it.", recall: bool = False) -> Step:
    return Step(subtask=subtask, worker=worker, access=frozenset(access), recall=recall)


def workflow(*steps: Step) -> Workflow:
    return Workflow(steps=steps)


DIAMOND = workflow(step(), step("bob", 0), step("cy", 0), step("bob"), step("ada", 1, 2))
