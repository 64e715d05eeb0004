"""The tree of errors, and what each carries."""

from __future__ import annotations

import pickle
import re
from datetime import UTC, datetime

import pytest

from rl_conductor import errors
from rl_conductor.errors import (
    BadRequestError,
    BadResponseError,
    ConductorError,
    LimitError,
    ModelError,
    ModelTimeoutError,
    PolicyError,
    RateLimitError,
    ReplyFormatError,
    RunError,
    WorkflowParseError,
    WorkflowValidationError,
)
from rl_conductor.trace.setup import Versions
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Completion, Message, Request, Usage
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy

ALL = {
    name: error for name, error in vars(errors).items() if isinstance(error, type) and issubclass(error, ConductorError)
}


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = re.findall(r"^ *([│├└─ ]*)(\w+Error)\b", errors.__doc__ or "", re.MULTILINE)
    path: dict[int, str] = {}
    for lead, name in drawn:
        depth = len(lead) // 4
        path[depth] = name
        if depth:
            assert ALL[name].__bases__ == (ALL[path[depth - 1]],)
    assert {name for _, name in drawn} == ALL.keys()


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (ModelError, False),
        (RateLimitError, True),
        (ModelTimeoutError, True),
        (BadResponseError, True),
        (BadRequestError, False),
        (errors.AuthenticationError, False),
        (errors.ContextLengthError, False),
    ],
)
def test_a_model_error_knows_whether_it_may_pass(error: type[ModelError], retryable: bool) -> None:
    assert error("x", model="m").retryable is retryable
    assert error("x", model="m", retryable=not retryable).retryable is not retryable


@pytest.mark.parametrize(
    "error",
    [
        ModelError("x", model="m", status=503, retry_after=2.0),
        ReplyFormatError("x", model="m", completion=Completion(message=Message.assistant("No."), model="m")),
        LimitError("x", limit="usd", needed=2, remaining=1, owner="key"),
        PolicyError("x", rule="deny"),
        WorkflowValidationError("a", "b"),
        errors.ConfigError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_whole_from_another_process(error: ConductorError) -> None:
    received = pickle.loads(pickle.dumps(error))
    assert type(received) is type(error)
    assert (str(received), vars(received)) == (str(error), vars(error))


def test_errors_carry_what_they_are_about() -> None:
    failed = ModelError("x", model="m", status=503, retry_after=2.0)
    assert (failed.model, failed.status, failed.retry_after, str(failed)) == ("m", 503, 2.0, "x")
    assert PolicyError("x", rule="deny").rule == "deny"
    refused = LimitError("x", limit="usd", needed=2, remaining=1, owner="key")
    assert (refused.limit, refused.needed, refused.remaining, refused.owner) == ("usd", 2, 1, "key")
    reply = Completion(message=Message.assistant("No."), usage=Usage(calls=1), model="m")
    unfit = ReplyFormatError("x", model="m", completion=reply)
    assert (unfit.model, unfit.completion, unfit.usage) == ("m", reply, reply.usage)
    assert WorkflowParseError("x", text="plan").text == "plan"
    invalid = WorkflowValidationError("a", "b")
    assert (str(invalid), invalid.violations) == ("the plan may not run: a; b", ("a", "b"))


def test_a_run_error_carries_the_trace() -> None:
    trace = Trace(
        id="run",
        created=datetime.now(UTC),
        request=Request.user("x"),
        policy=Policy(),
        limits=Limits(),
        planner="p",
        delimiter_key="k",
        versions=Versions(package="0", prompt="0"),
    )
    assert RunError("x", trace=trace).trace is trace
