"""`Workflow`: steps in order, structurally valid by construction. Pure.

A `PlanSpace` decides whether a workflow may run with a given pool and policy; `plan_text` has the syntax of plans.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from rl_conductor.types import Names
from rl_conductor.types.value import UserValue


def _clean_subtask(subtask: str) -> str:
    try:
        subtask.encode()
    except UnicodeEncodeError as lone:
        raise ValueError(f"character {lone.start} of the subtask is half of a surrogate pair") from lone
    return subtask.lstrip()


class Step(UserValue):
    """One subtask with its worker and the earlier steps that it reads."""

    subtask: Annotated[str, AfterValidator(_clean_subtask)]
    """The instructions for the worker; leading whitespace is dropped."""
    worker: str
    """The worker's name."""
    access: frozenset[int] = frozenset()
    """Positions of earlier steps, from 0."""
    recall: bool = False
    """Whether the step also reads the replies of earlier rounds (paper, recursion)."""
    inputs: Names | None = Field(default=None, exclude_if=lambda inputs: inputs is None)
    """Names of the user's earlier turns and attachments that the step sees, such as `image 1` (see
    `PlanSpace.inputs`); `None` means all of them. The text of the question is always seen."""


class Workflow(UserValue):
    """Steps in order; the reply of the last one is the answer. Constructing an invalid one raises."""

    steps: tuple[Step, ...] = Field(min_length=1)
    """At least one."""

    @model_validator(mode="after")
    def _check_steps(self) -> Self:
        for index, step in enumerate(self.steps):
            later = step.access.difference(range(index))
            if later:
                raise ValueError(
                    f"step {index + 1} may read only positions before its own, {index}, not {sorted(later)}"
                )
            if not step.subtask:
                raise ValueError(f"step {index + 1} has an empty subtask")
        return self

    @classmethod
    def chain(cls, *steps: tuple[str, str]) -> Self:
        """Returns a workflow of pairs of worker and subtask, in which each step reads all earlier ones."""
        return cls(
            steps=tuple(
                Step(subtask=subtask, worker=worker, access=frozenset(range(index)))
                for index, (worker, subtask) in enumerate(steps)
            )
        )

    @cached_property
    def needed(self) -> frozenset[int]:
        """Positions of the steps that the answer can depend on; the others never have to run."""
        return self.needed_after(())

    def needed_after(self, finished: Collection[int]) -> frozenset[int]:
        """Returns the positions of the steps that still have to run when those in `finished` have."""
        last = len(self.steps) - 1
        needed = {last}.difference(finished)
        for index in range(last, -1, -1):
            if index in needed:
                needed |= self.steps[index].access.difference(finished)
        return frozenset(needed)

    @cached_property
    def sources(self) -> tuple[frozenset[int], ...]:
        """For each step, the positions of all steps that it depends on, directly or indirectly."""
        reached: list[frozenset[int]] = []
        for step in self.steps:
            reached.append(step.access.union(*(reached[i] for i in step.access)))
        return tuple(reached)

    @cached_property
    def layers(self) -> tuple[tuple[int, ...], ...]:
        """Positions grouped by depth: the steps of one layer can run at the same time."""
        depth: list[int] = []
        for step in self.steps:
            depth.append(1 + max((depth[i] for i in step.access), default=-1))
        return tuple(tuple(i for i, d in enumerate(depth) if d == level) for level in range(max(depth) + 1))

    def critical_path(self, seconds: tuple[float, ...] | None = None) -> float:
        """Computes the length of the longest chain to the answer, in steps or in the `seconds` of each step."""
        cost = seconds or (1.0,) * len(self.steps)
        finish: list[float] = []
        for index, step in enumerate(self.steps):
            finish.append(cost[index] + max((finish[i] for i in step.access), default=0.0))
        return finish[-1]

    def ascii(self) -> str:
        """Renders the workflow as text, one line per step with the steps that it reads."""
        width = max(len(step.worker) for step in self.steps)
        lines = []
        for index, step in enumerate(self.steps):
            reads = ", ".join(str(i + 1) for i in sorted(step.access))
            mark = "─▶" if index == len(self.steps) - 1 else "  "
            seen = f" ⟵ {reads}" if reads else ""
            lines.append(f"{mark} {index + 1} {step.worker:<{width}}  {step.subtask}{seen}{_inputs_text(step, ' · ')}")
        return "\n".join(lines)

    def mermaid(self) -> str:
        """Renders the workflow as a Mermaid flow chart."""
        lines = ["flowchart TD"]
        for index, step in enumerate(self.steps):
            label = f"{index + 1} · {_escape(step.worker)}<br>{_escape(step.subtask)}{_inputs_label(step)}"
            lines.append(f'    s{index}["{label}"]')
        for index, step in enumerate(self.steps):
            lines += [f"    s{i} --> s{index}" for i in sorted(step.access)]
        return "\n".join(lines)


def _inputs_text(step: Step, separator: str) -> str:
    """Describes the inputs of a step that does not see all of them."""
    if step.inputs is None:
        return ""
    return f"{separator}sees {', '.join(sorted(step.inputs)) or 'no inputs'}"


def _inputs_label(step: Step) -> str:
    return f"<br>{_escape(_inputs_text(step, ''))}" if step.inputs is not None else ""


def _escape(text: str) -> str:
    """Escapes `text` for a Mermaid label."""
    for raw, safe in (("&", "&amp;"), ('"', "&quot;"), ("<", "&lt;"), (">", "&gt;"), ("\n", " ")):
        text = text.replace(raw, safe)
    return text
