"""`FunctionModel`: a Python function as a worker."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any

from pydantic_core import to_json

from rl_conductor._internal.blocking import in_thread
from rl_conductor.errors import ConfigError
from rl_conductor.models.base import Capabilities, checked, require
from rl_conductor.pool.worker_prompt import prompt_in, replies_in, subtask_in
from rl_conductor.types import FREE, Completion, Delta, Message, Price, Request, Usage

WorkerFunction = Callable[..., Any]
"""`f(subtask)`, `f(subtask, replies)` or `f(request)`, sync or async; the return value is the reply."""


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
                with a parameter that is annotated as `Request`.

        Raises:
            ConfigError: the function takes no or more than two arguments.
        """
        inner = function.func if isinstance(function, partial) else function
        self.name = f"function:{getattr(inner, '__name__', type(inner).__name__)}"
        self.description = " ".join((inspect.getdoc(inner) or "").split("\n\n")[0].split())
        self._function = function
        self._arguments = _argument_builder(function, self.name)

    async def complete(self, request: Request) -> Completion:
        """Calls the function.

        Raises:
            BadResponseError: it returned an empty string.
        """
        require(self, request)
        call = partial(self._function, *self._arguments(request))
        result = await (call() if _is_async(self._function) else in_thread(call))
        if isinstance(result, Awaitable):
            result = await result
        text = result if isinstance(result, str) else to_json(result, fallback=str).decode()
        return checked(Completion(message=Message.assistant(text), usage=Usage(calls=1), model=self.name))

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Yields the reply in one piece."""
        completion = await self.complete(request)
        yield Delta(text=completion.text)
        yield Delta(completion=completion)

    async def aclose(self) -> None:
        """Does nothing; there are no resources to release."""


def is_worker_function(thing: object) -> bool:
    """Returns whether `thing` is a function, a method or a `functools.partial` of one."""
    return inspect.isroutine(thing.func if isinstance(thing, partial) else thing)


def _is_async(function: WorkerFunction) -> bool:
    return inspect.iscoroutinefunction(function.func if isinstance(function, partial) else function)


def _argument_builder(function: WorkerFunction, name: str) -> Callable[[Request], tuple[object, ...]]:
    parameters = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    required = [parameter for parameter in parameters if parameter.default is parameter.empty]
    if not parameters or len(required) > 2:
        signature = f"{name.removeprefix('function:')}{inspect.signature(function)}"
        raise ConfigError(f"{signature} can't be a worker: write a function of (subtask) or (subtask, replies)")
    if parameters[0].annotation in (Request, "Request"):
        return lambda request: (request,)
    if len(required) < 2:
        return lambda request: (subtask_in(prompt_in(request.messages)),)
    return lambda request: (subtask_in(prompt := prompt_in(request.messages)), replies_in(prompt))
