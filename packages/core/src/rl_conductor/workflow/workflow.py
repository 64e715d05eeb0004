"""Steps, workflows, and the set of workflows that may be written for one request.

A `Workflow` that exists is valid in itself; a `PlanSpace` says whether it may run for this pool and
policy. Pure: nothing here calls a model or knows how plans are spelled.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from rl_conductor.errors import WorkflowValidationError
from rl_conductor.types import Value

AccessMode = Literal["binary", "positional"]
"""Whether a step sees no earlier step or all of them (paper, main runs), or any subset."""


def _text(subtask: str) -> str:
    try:
        subtask.encode()
    except UnicodeEncodeError as lone:
        raise ValueError(f"character {lone.start} of the subtask is half of a surrogate pair") from lone
    return subtask.lstrip()


class Step(Value):
    """One subtask, the worker that does it, and the earlier steps whose replies it may see."""

    subtask: Annotated[str, AfterValidator(_text)]
    """What is to be done; blank space before it is dropped."""
    worker: str
    access: frozenset[int] = frozenset()
    """Positions of earlier steps, from 0."""
    recall: bool = False
    """May also see the steps of the rounds before (paper, recursion)."""


class Workflow(Value):
    """Steps in order; the reply of the last one is the answer. Constructing an invalid one raises."""

    steps: tuple[Step, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _reads_only_earlier_steps(self) -> Self:
        for index, step in enumerate(self.steps):
            later = sorted(i for i in step.access if not 0 <= i < index)
            if later:
                raise ValueError(f"step {index + 1} may read only positions before its own, {index}, not {later}")
            if not step.subtask:
                raise ValueError(f"step {index + 1} has an empty subtask")
        return self

    @cached_property
    def needed(self) -> frozenset[int]:
        """Positions of the steps that the answer can depend on; the others need never run."""
        found = {len(self.steps) - 1}
        for index in range(len(self.steps) - 1, -1, -1):
            if index in found:
                found |= self.steps[index].access
        return frozenset(found)

    @cached_property
    def sources(self) -> tuple[frozenset[int], ...]:
        """For each step, every step whose content can have reached it, directly or through others."""
        reached: list[frozenset[int]] = []
        for step in self.steps:
            reached.append(step.access.union(*(reached[i] for i in step.access)))
        return tuple(reached)

    @cached_property
    def layers(self) -> tuple[tuple[int, ...], ...]:
        """Positions by depth: the steps of one layer can run at the same time."""
        depth: list[int] = []
        for step in self.steps:
            depth.append(1 + max((depth[i] for i in step.access), default=-1))
        return tuple(tuple(i for i, d in enumerate(depth) if d == level) for level in range(max(depth) + 1))

    def critical_path(self, seconds: tuple[float, ...] | None = None) -> float:
        """Length of the longest chain to the answer: in steps, or in the `seconds` each step took."""
        cost = seconds or (1.0,) * len(self.steps)
        finish: list[float] = []
        for index, step in enumerate(self.steps):
            finish.append(cost[index] + max((finish[i] for i in step.access), default=0.0))
        return finish[-1]

    def ascii(self) -> str:
        """The workflow as text, a line a step, with what each one reads."""
        width = max(len(step.worker) for step in self.steps)
        lines = []
        for index, step in enumerate(self.steps):
            reads = ", ".join(str(i + 1) for i in sorted(step.access))
            mark = "─▶" if index == len(self.steps) - 1 else "  "
            seen = f" ⟵ {reads}" if reads else ""
            lines.append(f"{mark} {index + 1} {step.worker:<{width}}  {step.subtask}{seen}")
        return "\n".join(lines)

    def mermaid(self) -> str:
        """The workflow as a Mermaid flow chart."""
        lines = ["flowchart TD"]
        for index, step in enumerate(self.steps):
            label = f"{index + 1} · {_escaped(step.worker)}<br>{_escaped(step.subtask)}"
            lines.append(f'    s{index}["{label}"]')
        for index, step in enumerate(self.steps):
            lines += [f"    s{i} --> s{index}" for i in sorted(step.access)]
        return "\n".join(lines)


def _escaped(text: str) -> str:
    """`text` as a Mermaid label shows it, none of it read as markup."""
    for raw, safe in (("&", "&amp;"), ('"', "&quot;"), ("<", "&lt;"), (">", "&gt;"), ("\n", " ")):
        text = text.replace(raw, safe)
    return text


class PlanSpace(Value):
    """The set of workflows that may be written for one request.

    Made by `Policy.space` from the pool and the limits; the grammar decodes only its members, and the
    parser's result is checked against it, so both agree by construction.
    """

    roster: tuple[str, ...] = Field(min_length=1)
    """Worker names; a worker's position is the id that the Conductor writes."""
    allowed: frozenset[str]
    """The workers of the roster that may be used."""
    max_steps: int = Field(default=5, ge=1)
    min_steps: int = Field(default=1, ge=1)
    access: AccessMode = "binary"
    unreadable: frozenset[tuple[str, str]] = frozenset()
    """(reader, source) pairs: nothing that came from `source`, even through others, may reach `reader`."""
    last: frozenset[str] | None = None
    """The workers of whom one must do the last step; `None` leaves it to all."""
    last_reads_all: bool = False
    """The last step must see every earlier one (a forced verifier)."""
    recalled: frozenset[str] | None = None
    """Workers whose replies of earlier rounds a step may recall; `None` in the first round."""
    may_accept: bool = False
    """An empty plan is allowed and accepts the answer of the round before."""
    subtask_chars: int = Field(default=400, ge=1)
    """Longest subtask."""

    @model_validator(mode="after")
    def _names_each_worker_once(self) -> Self:
        if len(set(self.roster)) < len(self.roster):
            raise ValueError(f"the roster names a worker twice: {', '.join(self.roster)}")
        return self

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed workers, in roster order."""
        return tuple(name for name in self.roster if name in self.allowed)

    @property
    def last_choices(self) -> tuple[str, ...]:
        """The allowed workers that may do the last step, in roster order."""
        return self.choices if self.last is None else tuple(name for name in self.choices if name in self.last)

    @property
    def leaves_no_choice(self) -> bool:
        """Whether one worker has to do it in one step, so that nothing is left to plan."""
        return len(self.choices) == 1 and self.max_steps == 1

    def violations(self, workflow: Workflow) -> tuple[str, ...]:
        """Every rule that `workflow` breaks, in words; empty when it may run."""
        steps = workflow.steps
        found = list(self.step_violations(workflow))
        if not self.min_steps <= len(steps) <= self.max_steps:
            found.insert(0, self.wrong_count(len(steps)))
        if self.last is not None and steps[-1].worker not in self.last:
            able = " or ".join(map(repr, sorted(self.last)))
            found.append(f"the last step must be done by {able}, not {steps[-1].worker!r}")
        if self.last_reads_all and steps[-1].access != frozenset(range(len(steps) - 1)):
            found.append("the last step must see every earlier step")
        return tuple(found)

    def wrong_count(self, steps: int) -> str:
        """The violation of a plan with too few or too many steps."""
        return f"{steps} steps, but {self.min_steps} to {self.max_steps} are allowed"

    def step_violations(self, workflow: Workflow) -> tuple[str, ...]:
        """The rules that a single step breaks: no later step can mend them, so a plan half written can be judged."""
        return tuple(
            f"step {index + 1}: {problem}"
            for index, step in enumerate(workflow.steps)
            for problem in self._step_problems(workflow, index, step)
        )

    def check(self, workflow: Workflow) -> Workflow:
        """`workflow` itself, or a `WorkflowValidationError` that lists every broken rule."""
        found = self.violations(workflow)
        if found:
            raise WorkflowValidationError(*found)
        return workflow

    def worker(self, position: int, *, where: str) -> str:
        """The worker at a position of the roster, whom a plan names in a step: `where` calls it by its number.

        Raises:
            WorkflowValidationError: there is none.
        """
        if 0 <= position < len(self.roster):
            return self.roster[position]
        last = len(self.roster) - 1
        raise WorkflowValidationError(f"{where}: there is no worker {position}; there are 0 to {last}")

    def may_read(self, reader: str, source: str) -> bool:
        """Whether content of `source` may reach `reader`."""
        return (reader, source) not in self.unreadable

    def _step_problems(self, workflow: Workflow, index: int, step: Step) -> list[str]:
        found = []
        if step.worker not in self.roster:
            found.append(f"there is no worker {step.worker!r}; there are {', '.join(self.roster)}")
        elif step.worker not in self.allowed:
            found.append(f"worker {step.worker!r} is not allowed")
        if len(step.subtask) > self.subtask_chars:
            found.append(f"a subtask of {len(step.subtask)} characters; at most {self.subtask_chars} are allowed")
        if self.access == "binary" and step.access not in (frozenset(), frozenset(range(index))):
            found.append("a step sees either no earlier step or all of them")
        if step.recall and self.recalled is None:
            found.append("there is no earlier round to recall")
        elif self.access == "binary" and self.recalled is not None and index and step.recall != bool(step.access):
            found.append("a step sees the earlier rounds exactly when it sees the earlier steps")
        sources = {workflow.steps[i].worker for i in workflow.sources[index]}
        for i in (index, *workflow.sources[index]):
            if workflow.steps[i].recall:
                sources |= self.recalled or frozenset()
        found += [
            f"nothing from {source!r} may reach {step.worker!r}"
            for source in sorted(sources)
            if not self.may_read(step.worker, source)
        ]
        return found
