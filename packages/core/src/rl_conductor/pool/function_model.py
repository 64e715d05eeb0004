"""`FunctionModel`: a Python function as a worker."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any

from pydantic_core import to_json

from rl_conductor._internal.blocking import in_thread
from rl_conductor.errors import ConfigError
from rl_conductor.models.base import Capabilities, checked, in_one_piece, require
from rl_conductor.pool.worker_prompt import prompt_in, question_in, replies_in, subtask_in
from rl_conductor.types import FREE, Completion, Delta, Message, Price, Request, Usage

WorkerFunction = Callable[..., Any]
"""`f(subtask)`, `f(subtask, replies)`, either with `question`, or `f(request)`, sync or async; returns the reply."""
QUESTION = "question"
"""The parameter that gets the user's question."""


class FunctionModel:
    """Answers by calling a function with the subtask of its step, and with the replies that the step may read.

    Sync functions run in a thread, so they don't hold up other steps. Return values other than strings are converted to
    JSON. The docstring becomes the worker's description.
    """

    capabilities = Capabilities.model_construct(reasoning_start="outside")
    price: Price | None = FREE

    def __init__(self, function: WorkerFunction) -> None:
        """Creates a model from a function.

        Args:
            function: `f(subtask)`, `f(subtask, replies)` with the list of the earlier steps' replies, or `f(request)`
                with a parameter that is annotated as `Request`. A parameter called `question`, in any of them, gets the
                user's question.

        Raises:
            ConfigError: the function takes no or more than two arguments.
        """
        inner = function.func if isinstance(function, partial) else function
        self.name = f"function:{getattr(inner, '__name__', type(inner).__name__)}"
        self.description = " ".join((inspect.getdoc(inner) or "").split("\n\n")[0].split())
        self._function = function
        self._arguments = _argument_builder(function, self.name)

    @property
    def reads_question(self) -> bool:
        """Whether the function gets the user's question, and not only a subtask."""
        parameters = inspect.signature(self._function).parameters
        return QUESTION in parameters or _takes_request(next(iter(parameters.values())))

    async def complete(self, request: Request) -> Completion:
        """Calls the function.

        Raises:
            BadResponseError: it returned an empty string.
        """
        require(self, request)
        arguments, question = self._arguments(request)
        call = partial(self._function, *arguments, **question)
        result = await (call() if _is_async(self._function) else in_thread(call))
        if isinstance(result, Awaitable):
            result = await result
        text = result if isinstance(result, str) else to_json(result, fallback=str).decode()
        return checked(Completion(message=Message.assistant(text), usage=Usage(calls=1), model=self.name))

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Yields the reply in one piece."""
        return in_one_piece(self, request)

    async def aclose(self) -> None:
        """Does nothing; there are no resources to release."""


def is_worker_function(thing: object) -> bool:
    """Returns whether `thing` is a function, a method or a `functools.partial` of one."""
    return inspect.isroutine(thing.func if isinstance(thing, partial) else thing)


def _is_async(function: WorkerFunction) -> bool:
    return inspect.iscoroutinefunction(function.func if isinstance(function, partial) else function)


def _takes_request(parameter: inspect.Parameter) -> bool:
    return parameter.annotation in (Request, "Request")


Arguments = tuple[tuple[object, ...], dict[str, str]]


def _argument_builder(function: WorkerFunction, name: str) -> Callable[[Request], Arguments]:
    """Returns a function that builds the positional arguments, and the question as a keyword."""
    all_parameters = inspect.signature(function).parameters
    parameters = [
        parameter
        for parameter in all_parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) and parameter.name != QUESTION
    ]
    required = [parameter for parameter in parameters if parameter.default is parameter.empty]
    if not (parameters or QUESTION in all_parameters) or len(required) > 2:
        signature = f"{name.removeprefix('function:')}{inspect.signature(function)}"
        raise ConfigError(f"{signature} can't be a worker: write a function of (subtask) or (subtask, replies)")

    def build(request: Request) -> Arguments:
        prompt = prompt_in(request.messages)
        question = {QUESTION: question_in(prompt)} if QUESTION in all_parameters else {}
        if parameters and _takes_request(parameters[0]):
            return (request,), question
        values = (subtask_in(prompt), replies_in(prompt))
        return values[: max(len(required), 1) if parameters else 0], question

    return build
