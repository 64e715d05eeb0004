"""A person's look at a plan before it runs: what they are shown, and what they may decide.

The decisions are those of LangChain's `HumanInTheLoopMiddleware`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from langgraph.types import interrupt
from pydantic import AfterValidator, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

from rl_conductor.errors import ConductorError
from rl_conductor.trace.trace import PlanRecord
from rl_conductor.types import Message, Value
from rl_conductor.workflow.workflow import Workflow

PLAN_AGAIN = "A reviewer rejected this plan:\n{drawing}\n\n{message}\n\nWrite another one."
NO_REASON = "They gave no reason."
NO_DECISION = (
    "write Command(resume={'type': 'approve'}), or as the type 'edit' with a 'workflow', 'reject' with a 'message', or "
    "'respond' with a 'message'"
)


class Approve(Value):
    """Run the plan as it is."""

    type: Literal["approve"]


class Edit(Value):
    """Run this one instead."""

    type: Literal["edit"]
    workflow: Workflow


class Reject(Value):
    """Don't run it; another is planned, with the message in mind."""

    type: Literal["reject"]
    message: str = NO_REASON


class Respond(Value):
    """Run nothing; the message is the answer."""

    type: Literal["respond"]
    message: str


Decision = Approve | Edit | Reject | Respond


def ask(plan: PlanRecord, workflow: Workflow, check: Callable[[Workflow], object]) -> Decision:
    """Pause until somebody decides about `plan`.

    Args:
        plan: as it was written.
        workflow: its workflow.
        check: raises `ConductorError` for a workflow that may not run.

    Raises:
        pydantic.ValidationError: what came is no decision, or the workflow in it may not run; the pause goes on.
    """

    def may_run(decision: Decision) -> Decision:
        if isinstance(decision, Edit):
            try:
                check(decision.workflow)
            except ConductorError as error:
                raise ValueError(str(error)) from error
        return decision

    allowed: Any = Annotated[Decision, Field(discriminator="type"), WrapValidator(_read), AfterValidator(may_run)]
    decision: Decision = interrupt(shown(plan, workflow), response_schema=allowed)
    return decision


def _read(given: Any, read: ValidatorFunctionWrapHandler) -> Decision:
    try:
        decision: Decision = read(given)
    except ValidationError as error:
        if error.errors()[0]["loc"]:  # a decision, with something wrong in it
            raise
        raise PydanticCustomError("no_decision", NO_DECISION) from error
    return decision


def shown(plan: PlanRecord, workflow: Workflow) -> dict[str, Any]:
    """The plan drawn and as data; the data may come back changed in an `edit`."""
    return {
        "type": "plan_review",
        "drawing": workflow.ascii(),
        "mermaid": workflow.mermaid(),
        "reasoning": plan.reasoning,
        "workflow": workflow.model_dump(mode="json"),
    }


def objection(workflow: Workflow, decision: Reject) -> Message:
    """A rejection, in words for the planner."""
    return Message.user(PLAN_AGAIN.format(drawing=workflow.ascii(), message=decision.message))
