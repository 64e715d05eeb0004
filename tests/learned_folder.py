"""The folder of a conductor that was learned for two scripted workers, for the tests of every host."""

from __future__ import annotations

from pathlib import Path

from rl_conductor import ScriptedModel, Step, Workflow
from rl_conductor.config.discovered_pool import from_file
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor.pool.pool_file import read_pool_file
from rl_conductor.prompting.worker_prompt import replies_in
from rl_conductor.types import FREE, Price, Request
from rl_conductor_training.learn.folder import LearnedSystem, write_conductor_folder

QUESTION = "How many words are in this question?"
POOL = """
[workers.counter]
model = "scripted_worker:counter"
[workers.writer]
model = "scripted_worker:writer"
"""
PROVIDER = {"scripted_worker": "learned_folder:scripted_worker"}
"""Add this to `PROVIDERS` while the folder is in use."""


def scripted_worker(name: str, *, price: Price | None = None) -> ScriptedModel:
    """Creates the counter, which replies with the number of words of the question, or the writer, which quotes it."""

    def count(_: Request) -> str:
        return str(len(QUESTION.split()))

    def write(request: Request) -> str:
        return f"There are {replies_in(request.messages[-1].text)[-1]} words."

    return ScriptedModel({"counter": count, "writer": write}[name], name=name, price=price or FREE)


def write_learned_folder(folder: Path) -> Path:
    """Writes a pool file, and a learned folder whose only workflow is the counter, then the writer."""
    (folder / "pool.toml").write_text(POOL)
    discovered = from_file(read_pool_file(folder / "pool.toml"), "")
    first = Step(subtask="Count.", worker="counter")
    second = Step(subtask="Write a sentence.", worker="writer", access=frozenset({0}))
    learned = LearnedSystem(
        method="best fixed",
        planner=discovered.planner,
        selector=WorkflowSelector(workflows=(Workflow(steps=(first, second)),)),
    )
    write_conductor_folder(folder / "learned", learned, discovered.pool, folder / "pool.toml")
    return folder / "learned"
