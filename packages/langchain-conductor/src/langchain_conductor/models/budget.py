"""Applies the run's limits to agents and chains: every call of a model inside them is reserved before it is made.

Each call has the price of its own model, so the cost of an agent is the sum of its calls. The calls and the tools are
recorded for the trace.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler, UsageMetadataCallbackHandler
from langchain_core.callbacks.manager import handle_event
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import ensure_config
from langchain_core.runnables.config import (
    get_async_callback_manager_for_config,
    patch_config,
    var_child_runnable_config,
)
from langchain_core.tracers.context import _configure_hooks, register_configure_hook
from pydantic_core import to_json
from typing_extensions import override

from langchain_conductor.messages import PROVIDER, core_messages
from langchain_conductor.models.errors import is_rejected
from langchain_conductor.models.nested_calls import CallInProgress, NestedCalls, model_name
from langchain_conductor.models.prices import price_of_chat
from langchain_conductor.models.replies import reply_usage
from rl_conductor.errors import ConfigError, ModelError
from rl_conductor.integration import Amount, PauseSignal, Reservation, UpperBound, current_scope, priced, upper_bound
from rl_conductor.types import Message, Price, Request, Sampling, Usage, total

log = logging.getLogger("langchain_conductor")

MAX_TOKENS_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Vendors' names for the maximum number of tokens of a reply."""


class BudgetCallback(BaseCallbackHandler):
    """Reserves each language model call inside a runnable in the limits of the surrounding run, and counts its usage.

    The reservation that was made for the runnable itself is released at the first call, since the number of its calls
    was unknown then.
    """

    raise_error = True
    """A refused call must not be made. The methods are sync because LangChain only logs the errors of async ones."""

    def __init__(self, name: str, price: Price | None) -> None:
        """Creates a handler for the calls of the runnable `name`.

        Args:
            name: the runnable's name.
            price: of the tokens of all its models; by default each call has the price of its own model.
        """
        self._name, self._price = name, price
        scope = current_scope.get()
        self._budget, self._runnable_reservation = scope.budget, scope.reservation
        self._beyond_usage = scope.beyond_usage
        self._calls: dict[UUID, _CallInside] = {}
        self._nested = NestedCalls()
        self._has_chain = False
        """Whether the runnable consists of several, so that a tool is not the runnable itself."""
        self.usages: list[Usage] = []
        """The usage of each call that has ended, and of each call of the conductors inside of the runnable."""
        self._lock = threading.Lock()
        self._closed = False

    @override
    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], *, run_id: UUID, **kwargs: Any
    ) -> None:
        """Waits for room in the budget.

        Raises:
            LimitError: the limits leave no room for this call, or the price of its model is unknown.
            ModelError: the runnable has ended.
        """
        self._start([message for conversation in messages for message in conversation], run_id, serialized, kwargs)

    @override
    def on_llm_start(self, serialized: dict[str, Any], prompts: list[str], *, run_id: UUID, **kwargs: Any) -> None:
        """Does the same for a call of a language model that is not a chat model."""
        self._start([HumanMessage(prompt) for prompt in prompts], run_id, serialized, kwargs)

    def _start(
        self, prompt: Sequence[BaseMessage], run_id: UUID, serialized: dict[str, Any], options: Mapping[str, Any]
    ) -> None:
        model: dict[str, Any] = options.get("metadata") or {}
        if model.get("ls_provider") == PROVIDER:  # a conductor reserves and reports its calls itself
            return
        price = self._price or price_of_chat(model)
        bound = upper_bound(_estimate_request(prompt, options), price)
        reservation = self._reserve(f"{model.get('ls_model_name', 'a model')} in {self._name}", bound)
        record = CallInProgress(model_name(model, serialized), price)
        try:
            with self._ensure_open():
                if reservation is not None:
                    reservation.begin()
                self._calls[run_id] = _CallInside(record, reservation)
        except ModelError:
            if reservation is not None:
                reservation.budget.release(reservation)
            raise

    def _reserve(self, model_name: str, bound: UpperBound) -> Reservation | None:
        if self._budget is None:
            return None
        with self._ensure_open():
            if self._runnable_reservation is not None:
                self._runnable_reservation.release()
        reservation = self._budget.reserve(model_name, bound)
        _acquire(reservation)
        return reservation

    @override
    def on_llm_new_token(self, token: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Remembers that the vendor sent a part of the reply, which it may bill."""
        if (call := self._calls.get(run_id)) is not None:
            call.has_begun = True

    @override
    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Charges the reported usage of the call."""
        if (call := self._pop(run_id)) is None:
            return
        generations = [item for candidates in response.generations for item in candidates]
        messages = [generation.message for generation in generations if isinstance(generation, ChatGeneration)]
        replies = [message for message in messages if isinstance(message, AIMessage)]
        usage = call.end(reply_usage(replies[0], call.record.price) if replies else priced(Usage(), None))
        if call.has_begun and not usage.total_tokens:
            _warn_of_missing_tokens(call.record.model, self._name)
        self._record(call, usage)
        self._nested.add_call(call.record, usage, generations[0] if generations else None)

    @override
    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Charges the whole reservation, since the failed call may have been billed, unless the vendor rejected it."""
        if (call := self._pop(run_id)) is not None:
            self._record_failure(call, error, is_rejected=not call.has_begun and is_rejected(error))

    @override
    def on_chain_start(self, serialized: dict[str, Any], inputs: dict[str, Any], **kwargs: Any) -> None:
        """Remembers that the runnable consists of several."""
        self._has_chain = True

    @override
    def on_tool_start(self, serialized: dict[str, Any], input_str: str, *, run_id: UUID, **kwargs: Any) -> None:
        """Begins the record of a tool inside the runnable."""
        if self._has_chain:
            name = kwargs.get("name") or (serialized or {}).get("name") or "tool"
            self._nested.start_tool(run_id, name, kwargs.get("inputs"), input_str)

    @override
    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Records the use of a tool inside the runnable."""
        self._nested.end_tool(run_id, output)

    @override
    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Records the failure of a tool inside the runnable."""
        self._nested.fail_tool(run_id, error)

    def close(self) -> None:
        """Ends the remaining calls as failed ones: LangChain does not report the end of cancelled calls."""
        with self._lock:
            self._closed = True
            abandoned, self._calls = self._calls, {}
        for call in abandoned.values():
            self._record_failure(call, None)

    def _record_failure(self, call: _CallInside, error: BaseException | None, *, is_rejected: bool = False) -> None:
        usage = call.fail(is_rejected=is_rejected)
        self._record(call, usage)
        self._nested.add_failure(call.record, usage, error)

    def _record(self, call: _CallInside, usage: Usage) -> None:
        """Records the usage of a call, and the charges that its limits count in addition."""
        self.usages.append(usage)
        if call.reservation is not None and self._beyond_usage is not None:
            self._beyond_usage.append(call.reservation.used - Amount.of(usage))

    @contextmanager
    def _ensure_open(self) -> Iterator[None]:
        """Holds the lock while open; threads of a cancelled runnable go on and may make calls after its end."""
        with self._lock:
            if self._closed:
                raise ModelError(f"{self._name} has ended, so it can't call a model any more", model=self._name)
            yield

    def _pop(self, run_id: UUID) -> _CallInside | None:
        with self._lock:
            return self._calls.pop(run_id, None)


@dataclass(eq=False)
class _CallInside:
    """A call in progress inside a runnable."""

    record: CallInProgress
    reservation: Reservation | None
    """The reservation for the call; `None` outside of a run."""
    has_begun: bool = False
    """Whether a part of its reply has arrived."""

    def end(self, usage: Usage) -> Usage:
        """Charges the usage that the model reported."""
        if self.reservation is not None:
            self.reservation.commit(usage)
            self.reservation.budget.release(self.reservation)
        return usage

    def fail(self, *, is_rejected: bool = False) -> Usage:
        """Charges the whole reservation, or only the attempt if the vendor rejected the call; returns the usage."""
        if self.reservation is not None:
            if is_rejected:
                self.reservation.refund()
            self.reservation.budget.release(self.reservation)
        is_free = is_rejected or (self.record.price is not None and self.record.price.is_free)
        return Usage(calls=1, unpriced_calls=int(not is_free))


@cache
def _warn_of_missing_tokens(model: str, worker: str) -> None:
    """Warns once that a streamed reply has no token counts, as of LangChain's OpenAI model at others' addresses."""
    log.warning(
        "%s in %s streams replies without token counts, so its tokens count as none; "
        "if its class has the setting, write stream_usage=True",
        model,
        worker,
    )


def _acquire(reservation: Reservation) -> None:
    """Waits for room. LangChain calls handlers in a thread; on the event loop's own thread waiting would deadlock."""
    acquisition = reservation.budget.acquire(reservation)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(acquisition)
        return
    try:
        acquisition.send(None)
    except StopIteration:
        return
    acquisition.close()
    raise ConfigError("an async worker calls its model by invoke(); write await model.ainvoke() so that it can wait")


def _estimate_request(prompt: Sequence[BaseMessage], kwargs: Mapping[str, Any]) -> Request:
    """Builds a request of the same size as the call that LangChain reports with `kwargs`."""
    settings = kwargs.get("invocation_params") or {}
    candidates = (settings.get(field) for field in MAX_TOKENS_FIELDS)
    max_tokens = next((value for value in candidates if isinstance(value, int) and value > 0), None)
    tools = Message.system(to_json(settings.get("tools") or [], fallback=str).decode())
    try:
        conversation = core_messages(prompt)
    except ConfigError:  # it contains blocks that the core does not support
        conversation = tuple(Message.user(to_json(message.content, fallback=str).decode()) for message in prompt)
    return Request(messages=(tools, *conversation), sampling=Sampling(max_tokens=max_tokens))


_callback: ContextVar[BudgetCallback | None] = ContextVar("conductor_budget", default=None)
register_configure_hook(_callback, inheritable=True)


def _is_about_others(record: logging.LogRecord) -> bool:
    """Whether a log record of LangChain is about another callback: the errors of this one are raised anyway."""
    return not isinstance(record.args, tuple) or BudgetCallback.__name__ not in record.args


logging.getLogger(handle_event.__module__).addFilter(_is_about_others)


@contextmanager
def enforce_budget(name: str, price: Price | None) -> Iterator[BudgetCallback]:
    """Reserves the language model calls of this block in the limits of the surrounding run, and counts their usage.

    The arguments are those of `BudgetCallback`. If the block fails, the call that it is part of gets the usage; if it
    pauses, the signal does.
    """
    outer = current_scope.get()
    callback = BudgetCallback(name, price)
    token = _callback.set(callback)
    scope = current_scope.set(replace(outer, nested_usage=callback.usages))
    try:
        with closing(callback):
            yield callback
    except PauseSignal as pause:
        pause.usage = total(callback.usages)
        raise
    except BaseException:
        if outer.nested_usage is not None:
            outer.nested_usage.extend(callback.usages)
        raise
    finally:
        current_scope.reset(scope)
        _callback.reset(token)


def disable_usage_callbacks() -> None:
    """Stops counting and reserving calls in the current context, for a conductor, which does both itself."""
    for variable, *_ in _configure_hooks:  # also those of LangChain's `get_usage_metadata_callback`
        if isinstance(variable.get(), UsageMetadataCallbackHandler):
            variable.set(None)
    _callback.set(None)


@contextmanager
def suspend_budget_callback() -> Iterator[None]:
    """Neither reserves nor counts the calls in this block, which a conductor makes and accounts for itself."""
    if _callback.get() is None:
        yield
        return
    token = _callback.set(None)
    config = ensure_config()
    manager = get_async_callback_manager_for_config(config)
    manager.set_handlers([each for each in manager.handlers if not isinstance(each, BudgetCallback)])
    config_token = var_child_runnable_config.set(patch_config(config, callbacks=manager))
    try:
        yield
    finally:
        var_child_runnable_config.reset(config_token)
        _callback.reset(token)
