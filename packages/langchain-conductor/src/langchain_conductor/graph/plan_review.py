"""Human review of a plan before it runs: the data that is shown, and the decisions that are accepted.

Request and decisions are also in the form of LangChain's `HumanInTheLoopMiddleware`, for user interfaces that know it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from langgraph.types import interrupt
from pydantic import Field, ModelWrapValidatorHandler, RootModel, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from rl_conductor.errors import ConductorError
from rl_conductor.integration import UserValue
from rl_conductor.trace import PlanRecord
from rl_conductor.types import Message
from rl_conductor.workflow import Workflow

REPLAN_PROMPT = "A reviewer rejected this plan:\n{drawing}\n\n{message}\n\nWrite another one."
ACTION = "run_workflow"
"""The name of the action to review, whose arguments are the workflow."""
NO_REASON = "They gave no reason."
INVALID_DECISION = (
    "write Command(resume={'type': 'approve'}), or as the type 'edit' with a 'workflow', 'reject' with a 'message', or "
    "'respond' with a 'message'"
)


class Approve(UserValue):
    """Runs the plan as it is."""

    type: Literal["approve"]


class Edit(UserValue):
    """Runs `workflow` in place of the plan."""

    type: Literal["edit"]
    workflow: Workflow = Field(examples=[{"steps": [{"subtask": "...", "worker": "..."}]}])


class Reject(UserValue):
    """Requests a new plan that takes the message into account."""

    type: Literal["reject"]
    message: str = Field(default=NO_REASON, examples=["what to change, as a text"])


class Respond(UserValue):
    """Runs nothing; the message is the answer."""

    type: Literal["respond"]
    message: str = Field(examples=["the text of the answer"])


Decision = Approve | Edit | Reject | Respond


def request_decision(plan: PlanRecord, workflow: Workflow, check: Callable[[Workflow], object]) -> Decision:
    """Pauses the graph until a decision about `plan` arrives.

    Args:
        plan: the plan to review.
        workflow: its workflow.
        check: raises `ConductorError` for a workflow that is not allowed.

    Raises:
        pydantic.ValidationError: the decision is invalid, or its workflow is not allowed; the graph stays paused.
    """

    class PlanDecision(RootModel[Annotated[Decision, Field(discriminator="type")]]):
        @model_validator(mode="wrap")
        @classmethod
        def _parse(cls, value: Any, parse: ModelWrapValidatorHandler[Self]) -> Self:
            try:
                parsed = parse(_from_middleware_form(value))
            except ValidationError as error:
                if error.errors()[0]["loc"]:  # a decision with an invalid field
                    raise
                raise PydanticCustomError("no_decision", INVALID_DECISION) from error
            if isinstance(parsed.root, Edit):
                try:
                    check(parsed.root.workflow)
                except ConductorError as error:
                    raise PydanticCustomError("workflow", "{error}", {"error": str(error)}) from error
            return parsed

    decision: PlanDecision = interrupt(review_data(plan, workflow), response_schema=PlanDecision)
    return decision.root


def _from_middleware_form(value: Any) -> Any:
    """Returns the decision in a list of one; the arguments of an edited action are its workflow."""
    match value:
        case {"decisions": [decision]}:
            value = decision
    match value:
        case {"type": "edit", "edited_action": {"args": workflow}}:
            return {"type": "edit", "workflow": workflow}
    return value


def review_data(plan: PlanRecord, workflow: Workflow) -> dict[str, Any]:
    """Returns the plan as a drawing, as data, and as an action; an `edit` may contain changed data."""
    drawing, data = workflow.ascii(), workflow.model_dump(mode="json")
    allowed = ["approve", "edit", "reject", "respond"]
    return {
        "type": "plan_review",
        "drawing": drawing,
        "mermaid": workflow.mermaid(),
        "reasoning": plan.reasoning,
        "workflow": data,
        "action_requests": [{"name": ACTION, "args": data, "description": drawing}],
        "review_configs": [{"action_name": ACTION, "allowed_decisions": allowed}],
    }


def rejection_message(workflow: Workflow, decision: Reject) -> Message:
    """Writes a rejection as a message to the planner."""
    return Message.user(REPLAN_PROMPT.format(drawing=workflow.ascii(), message=decision.message))
