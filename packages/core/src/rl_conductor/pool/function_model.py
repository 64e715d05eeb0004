"""`FunctionModel`: a Python function as a worker."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard

from rl_conductor._internal.blocking import in_thread
from rl_conductor.agents.function_result import collect_result, describe_no_reply, result_text
from rl_conductor.calls.scope import current_scope
from rl_conductor.errors import ConfigError, ModelError
from rl_conductor.models.base import Capabilities, OnePieceModel, require
from rl_conductor.models.foreign_errors import FOREIGN_ERRORS, raise_translated
from rl_conductor.models.replies.checks import checked
from rl_conductor.prompting.worker_prompt import question_in, replies_in, subtask_in
from rl_conductor.types import FREE, Completion, Message, Price, Request, Usage, prompt_in

WorkerFunction = Callable[..., Any]
"""`f(subtask)`, `f(subtask, replies)`, either with `question`, or `f(request)`, sync or async; returns the reply."""
USAGE = Usage.model_construct()
"""The usage of a call whose tokens are unknown, also of a failed one: it costs what the worker's price says."""
QUESTION = "question"
"""The parameter that gets the user's question."""


class FunctionModel(OnePieceModel):
    """Answers by calling a function with the subtask of its step, and with the replies that the step may read.

    Sync functions run in a thread, so they don't hold up other steps. Texts that a generator yields are one reply. Of a
    message, a completion or a trace, the text is the reply; other return values are converted to JSON. A completion
    also brings the usage of the call. The docstring becomes the worker's description.
    """

    capabilities = Capabilities.model_construct(reasoning_start="outside", plans=False)
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
        self.function = function
        self._signature = _read_signature(function, self.name)

    @property
    def reads_question(self) -> bool:
        """Whether the function gets the user's question, and not only a subtask."""
        return self._signature.reads_question

    async def complete(self, request: Request) -> Completion:
        """Calls the function, and returns its result as a reply.

        Raises:
            BadResponseError: it returned an empty string.
            ModelError: it raised an exception, or returned nothing or an object that is no data.
        """
        require(self, request)
        arguments, keywords = self._signature.bind(request)
        call = partial(self.function, *arguments, **keywords)
        try:
            result = await (call() if inspect.iscoroutinefunction(self.function) else in_thread(call))
            result = await collect_result(result, self.name)
            text = self.reply_text(result)
        except FOREIGN_ERRORS as error:
            raise_translated(error, self, usage=USAGE)
        if text is None:
            raise ModelError(describe_no_reply(result, self.name), model=self.name, usage=USAGE)
        return checked(self.to_completion(text, result), request)

    def reply_text(self, result: object) -> str | None:
        """Converts the function's result to text; `None` if it is not a reply."""
        return None if result is None else result_text(result)

    def to_completion(self, text: str, result: object) -> Completion:
        """Builds the completion with the text of the function's result."""
        usage = result.usage if isinstance(result, Completion) else USAGE
        if usage.calls and current_scope.get().nested_usage:
            usage = USAGE  # of a conductor inside of the function, whose calls have been counted
        return Completion(message=Message.assistant(text), usage=usage, model=self.name)


def is_worker_function(thing: object) -> TypeGuard[WorkerFunction]:
    """Returns whether `thing` is a function, a method or a `functools.partial` of one."""
    return inspect.isroutine(thing.func if isinstance(thing, partial) else thing)


def _takes_request(parameter: inspect.Parameter) -> bool:
    return parameter.annotation in (Request, "Request")


@dataclass(frozen=True)
class _Signature:
    """The values that a function is called with."""

    positional: tuple[str, ...]
    """`request`, `question`, `subtask` or `replies` for each positional argument."""
    keywords: tuple[str, ...]

    @property
    def reads_question(self) -> bool:
        """Whether the user's question is part of it."""
        return bool({"request", QUESTION} & {*self.positional, *self.keywords})

    def bind(self, request: Request) -> tuple[list[object], dict[str, object]]:
        """Returns the positional and the keyword arguments for a request."""
        prompt = prompt_in(request.messages)
        values = {"request": request, QUESTION: question_in(prompt), "subtask": subtask_in(prompt)}
        values["replies"] = replies_in(prompt)
        return [values[name] for name in self.positional], {name: values[name] for name in self.keywords}


def _read_signature(function: WorkerFunction, name: str) -> _Signature:
    """Assigns a value to each parameter.

    Raises:
        ConfigError: the function takes nothing, or requires more than there is, or does not tell its parameters.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions in C
        signature = inspect.Signature()
    parameters = list(signature.parameters.values())
    positional: list[str] = []
    remaining = ["subtask", "replies"]
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            break
        if not positional and _takes_request(parameter):
            positional, remaining = ["request"], []
        elif parameter.name == QUESTION:
            positional.append(QUESTION)
        elif parameter.name == "replies" and remaining:
            positional.append("replies")
            remaining = []
        elif remaining and (parameter.default is parameter.empty or remaining[0] == "subtask"):
            positional.append(remaining.pop(0))
        else:
            break
    by_keyword = [parameter for parameter in parameters[len(positional) :] if parameter.name == QUESTION]
    keywords = [QUESTION for each in by_keyword if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    required = [
        each
        for each in parameters[len(positional) :]
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if not (positional or keywords) or any(each.name not in keywords for each in required):
        header = f"{name.removeprefix('function:')}{signature}"
        raise ConfigError(f"{header} can't be a worker: write a function of (subtask) or (subtask, replies)")
    return _Signature(tuple(positional), tuple(keywords))
