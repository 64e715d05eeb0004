"""`PlanSpace`: the set of workflows allowed for one request, and the rules that a workflow breaks. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, model_validator

from rl_conductor.errors import WorkflowValidationError
from rl_conductor.types import Value
from rl_conductor.workflow.workflow import Step, Workflow

AccessMode = Literal["binary", "positional"]
"""`binary`: a step reads no earlier step or all of them (paper, main runs); `positional`: any subset."""


class AttachmentRule(Value):
    """A kind of attachment in the question that only some of the allowed workers can read."""

    kind: Literal["images", "files"]
    readers: frozenset[str]
    """The workers that can. One of them has to do a step that the answer depends on, and see an attachment there."""

    def is_seen_by(self, step: Step) -> bool:
        """Returns whether the inputs of `step` contain an attachment of this kind."""
        return step.inputs is None or any(name.startswith(self.kind.removesuffix("s")) for name in step.inputs)


class PlanSpace(Value):
    """The set of workflows allowed for one request.

    `Policy.space` creates it from the pool and the limits. The grammar decodes only its members, and the parser checks
    plans against it, so both agree by construction. Only the rules about attachments are left to the check.
    """

    roster: tuple[str, ...] = Field(min_length=1)
    """Worker names; a worker's position is its id in plan text."""
    allowed: frozenset[str]
    """The workers of the roster that may be used."""
    max_steps: int = Field(default=5, ge=1)
    """Maximum number of steps."""
    min_steps: int = Field(default=1, ge=1)
    """Minimum number of steps."""
    access: AccessMode = "binary"
    """Whether a step reads all earlier steps or none, or any of them."""
    forbidden_flows: frozenset[tuple[str, str]] = frozenset()
    """(reader, source) pairs: content of `source` must not reach `reader`, not even through other steps."""
    last: frozenset[str] | None = None
    """The workers that may do the last step; `None` means all allowed workers."""
    last_reads_all: bool = False
    """Whether the last step must read every earlier one (policy verifier)."""
    recallable: frozenset[str] | None = None
    """The workers with replies in earlier rounds, which steps may recall; `None` in the first round."""
    may_accept: bool = False
    """Whether an empty plan, which accepts the answer of the previous round, is allowed."""
    attachments: tuple[AttachmentRule, ...] = ()
    """Kinds of attachments that only some of the allowed workers can read; the others see a note in their place."""
    inputs: tuple[str, ...] = ()
    """Names of the user's earlier turns and attachments that plans may give to single steps. If there are any, each
    step of a plan in the forms `rows` and `object` says which of them it sees."""
    shared_inputs: frozenset[str] = frozenset()
    """Names of the other earlier turns and attachments. Every planned step sees them; a caller's own need not."""
    tools: tuple[str, ...] = ()
    """Names of the caller's tools, which only the last step can call."""
    subtask_chars: int = Field(default=400, ge=1)
    """Maximum length of a subtask in characters."""

    @model_validator(mode="after")
    def _check_roster(self) -> Self:
        if len(set(self.roster)) < len(self.roster):
            raise ValueError(f"the roster names a worker twice: {', '.join(self.roster)}")
        return self

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed workers, in roster order."""
        return tuple([name for name in self.roster if name in self.allowed])

    @property
    def final_workers(self) -> tuple[str, ...]:
        """The allowed workers that may do the last step, in roster order."""
        return self.choices if self.last is None else tuple(name for name in self.choices if name in self.last)

    @property
    def leaves_no_choice(self) -> bool:
        """`True` if the only possible plan is one step by one worker, so that planning can be skipped."""
        return len(self.choices) == 1 and self.max_steps == 1

    def violations(self, workflow: Workflow) -> tuple[str, ...]:
        """Describes every rule that `workflow` breaks; empty when it may run."""
        steps = workflow.steps
        violations = list(self.step_violations(workflow))
        if not self.min_steps <= len(steps) <= self.max_steps:
            violations.insert(0, self.wrong_count(len(steps)))
        if self.last is not None and steps[-1].worker not in self.last:
            able = " or ".join(map(repr, sorted(self.last)))
            violations.append(f"the last step must be done by {able}, not {steps[-1].worker!r}")
        if self.last_reads_all and steps[-1].access != frozenset(range(len(steps) - 1)):
            violations.append("the last step must see every earlier step")
        return (*violations, *self._unread_attachments(workflow))

    def _unread_attachments(self, workflow: Workflow) -> Iterator[str]:
        """Describes the attachments that reach the answer neither directly nor through an earlier round."""
        needed = [workflow.steps[i] for i in workflow.needed]
        for rule in self.attachments:
            if not any((step.worker in rule.readers and rule.is_seen_by(step)) or step.recall for step in needed):
                readers = " or ".join(map(repr, sorted(rule.readers)))
                yield f"the {rule.kind} of the question must be read by {readers}, in a step that the answer depends on"

    def wrong_count(self, steps: int) -> str:
        """Returns the message for a plan with too few or too many steps."""
        return f"{steps} steps, but {self.min_steps} to {self.max_steps} are allowed"

    def step_violations(self, workflow: Workflow) -> tuple[str, ...]:
        """Describes the rules that single steps break; later steps can't fix these, so it checks partial plans, too."""
        return tuple(
            [
                f"step {index + 1}: {problem}"
                for index, step in enumerate(workflow.steps)
                for problem in self._step_problems(workflow, index, step)
            ]
        )

    def check(self, workflow: Workflow) -> Workflow:
        """Returns `workflow` if it may run.

        Raises:
            WorkflowValidationError: it breaks a rule; `violations` lists every broken rule.
        """
        violations = self.violations(workflow)
        if violations:
            raise WorkflowValidationError(*violations)
        return workflow

    def relaxed_for(self, workflow: Workflow) -> Self:
        """Lifts the rules that only keep the planner's plans easy to write, for a `workflow` of another origin."""
        max_chars = max(len(step.subtask) for step in workflow.steps)
        return self.model_copy(update={"access": "positional", "subtask_chars": max_chars})

    def worker(self, position: int, *, where: str) -> str:
        """Returns the name of the worker at `position` of the roster; `where` prefixes the error message.

        Raises:
            WorkflowValidationError: the position is out of range.
        """
        if 0 <= position < len(self.roster):
            return self.roster[position]
        last = len(self.roster) - 1
        raise WorkflowValidationError(f"{where}: there is no worker {position}; there are 0 to {last}")

    def may_read(self, reader: str, source: str) -> bool:
        """Returns whether content of `source` may reach `reader`."""
        return (reader, source) not in self.forbidden_flows

    def _list_inputs(self) -> str:
        names = sorted({*self.inputs, *self.shared_inputs})
        return f"are {', '.join(names)}" if names else "are no earlier turns or attachments"

    def _step_problems(self, workflow: Workflow, index: int, step: Step) -> list[str]:
        problems = []
        if step.worker not in self.roster:
            problems.append(f"there is no worker {step.worker!r}; there are {', '.join(self.roster)}")
        elif step.worker not in self.allowed:
            problems.append(f"worker {step.worker!r} is not allowed")
        if len(step.subtask) > self.subtask_chars:
            problems.append(f"a subtask of {len(step.subtask)} characters; at most {self.subtask_chars} are allowed")
        if self.access == "binary" and step.access not in (frozenset(), frozenset(range(index))):
            problems.append("a step sees either no earlier step or all of them")
        if step.inputs:
            problems += [
                f"there is no input {name!r}; there {self._list_inputs()}"
                for name in sorted(step.inputs - {*self.inputs, *self.shared_inputs})
            ]
        if step.recall and self.recallable is None:
            problems.append("there is no earlier round to recall")
        elif self.access == "binary" and self.recallable is not None and index and step.recall != bool(step.access):
            problems.append("a step sees the earlier rounds exactly when it sees the earlier steps")
        if not self.forbidden_flows:
            return problems
        sources = {workflow.steps[i].worker for i in workflow.sources[index]}
        for i in (index, *workflow.sources[index]):
            if workflow.steps[i].recall:
                sources |= self.recallable or frozenset()
        problems += [
            f"nothing from {source!r} may reach {step.worker!r}"
            for source in sorted(sources)
            if not self.may_read(step.worker, source)
        ]
        return problems
