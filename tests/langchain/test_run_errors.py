"""Errors of runs are LangChain's as well, so that its handlers know them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware
from langchain_core import exceptions as lc_errors
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import HumanMessage
from langchain_core.runnables import Runnable, RunnableLambda

from langchain_conductor import ChatConductor, RunnableConductor, create_conductor
from rl_conductor import ConfigError, ModelError, Policy, RunError, ScriptedModel
from rl_conductor.errors import ContextLengthError, ModelTimeoutError
from rl_conductor.models.vendor_errors import status_error
from rl_conductor.types import Request

PLAN = "model_id = [0]\nsubtasks = ['Answer.']\naccess_list = [[]]"


def failing(error: ModelError) -> ScriptedModel:
    def reply(_: Request) -> str:
        raise error

    return ScriptedModel(reply)


def status(code: int) -> ModelError:
    return status_error(f"HTTP {code}", model="m", status=code)


def chat(*errors: ModelError) -> ChatConductor:
    workers = {f"w{number}": failing(error) for number, error in enumerate(errors)}
    return ChatConductor(workers, planner=ScriptedModel(lambda _: PLAN), max_retries=0)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (status(400), lc_errors.ModelInvalidRequestError),
        (ContextLengthError("too long", model="m", status=400), lc_errors.ContextOverflowError),
        (status(401), lc_errors.ModelAuthenticationError),
        (status(403), lc_errors.ModelPermissionDeniedError),
        (status(404), lc_errors.ModelNotFoundError),
        (status(429), lc_errors.ModelRateLimitError),
        (status(503), lc_errors.ModelAPIError),
        (ModelTimeoutError("too slow", model="m"), lc_errors.ModelTimeoutError),
    ],
)
async def test_an_error_of_all_workers_is_langchains_error_of_this_kind(
    error: ModelError, kind: type[lc_errors.ModelError]
) -> None:
    with pytest.raises(kind) as caught:
        await chat(error, error).ainvoke("Why?")
    assert isinstance(caught.value, RunError)
    assert caught.value.trace.error
    assert caught.value.is_retryable == kind.is_retryable
    with pytest.raises(kind):
        [chunk async for chunk in chat(error).astream("Why?")]


@pytest.mark.parametrize(
    "build",
    [
        RunnableConductor,
        lambda model: RunnableConductor(model).plan | RunnableConductor(model).execute,
        lambda model: RunnableLambda(lambda text: {"messages": text}) | create_conductor(model),
    ],
    ids=["runnable", "plan and execute", "node"],
)
async def test_runnables_and_nodes_raise_the_same_errors(build: Callable[[ChatConductor], Runnable[str, Any]]) -> None:
    runnable = build(chat(status(429)))
    with pytest.raises(lc_errors.ModelRateLimitError):
        runnable.invoke("Why?")
    with pytest.raises(lc_errors.ModelRateLimitError):
        await runnable.ainvoke("Why?")


def test_different_errors_say_whether_a_retry_may_help() -> None:
    with pytest.raises(lc_errors.ModelError) as caught:
        chat(status(401), status(429)).invoke("Why?")
    assert not caught.value.is_retryable
    with pytest.raises(lc_errors.ModelError) as caught:
        chat(status(503), status(429)).invoke("Why?")
    assert caught.value.is_retryable


def test_the_error_is_that_of_the_worker_that_should_answer_and_not_of_the_drafts() -> None:
    planner = ScriptedModel('model_id = [0, 1]\nsubtasks = ["Draft.", "Answer."]\naccess_list = [[], ["all"]]')
    workers = {"drafter": ScriptedModel("A draft."), "editor": failing(status(429))}
    model = ChatConductor(workers, planner=planner, policy=Policy(final="editor"), max_retries=0)
    with pytest.raises(lc_errors.ModelRateLimitError):
        model.invoke("Why?")


def test_the_retries_of_an_agent_leave_out_errors_that_stay() -> None:
    for error, runs in ((status(401), 1), (status(429), 3)):
        planner = ScriptedModel(PLAN)
        model = ChatConductor({"a": failing(error)}, planner=planner, max_retries=0)
        middleware = [ModelRetryMiddleware(max_retries=2, initial_delay=0.0, on_failure="error")]
        with pytest.raises(RunError):
            create_agent(model, middleware=middleware).invoke({"messages": [HumanMessage("Why?")]})
        assert len(planner.requests) == runs


def test_a_fallback_for_langchains_errors_takes_over() -> None:
    spare = FakeListChatModel(responses=["spare"])
    kinds = (lc_errors.ModelRateLimitError,)
    assert chat(status(429)).with_fallbacks([spare], exceptions_to_handle=kinds).invoke("Why?").content == "spare"


def test_errors_of_the_call_itself_stay_as_they_are() -> None:
    with pytest.raises(ConfigError):
        chat(status(429)).invoke("")


def test_a_question_without_text_ends_a_batch_unless_it_returns_errors() -> None:
    model = ChatConductor({"a": ScriptedModel("An answer.")}, planner=ScriptedModel(PLAN))
    with pytest.raises(ConfigError, match="the question is empty; write a question"):
        model.batch([" "])
    results: list[Any] = model.batch(["Why?", ""], return_exceptions=True)
    answer, error = results
    assert (answer.text, type(error)) == ("An answer.", ConfigError)


def test_an_error_of_a_run_comes_whole_from_another_process() -> None:
    with pytest.raises(RunError) as caught:
        chat(status(429)).invoke("Hi.")
    received = pickle.loads(pickle.dumps(caught.value))
    assert (str(received), received.trace) == (str(caught.value), caught.value.trace)
    assert isinstance(received, lc_errors.ModelRateLimitError)
