"""Applies the run's limits to agents and chains: every chat model call inside them is reserved before it is made."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.callbacks.manager import handle_event
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.tracers.context import register_configure_hook
from pydantic_core import to_json
from typing_extensions import override

from langchain_conductor.messages import PROVIDER, core_messages
from langchain_conductor.models.prices import price_of_chat
from langchain_conductor.models.replies import reply_usage
from rl_conductor.errors import ConfigError, ModelError
from rl_conductor.integration import PauseSignal, Reservation, current_scope, upper_bound
from rl_conductor.types import Message, Price, Request, Sampling, Usage, total

MAX_TOKENS_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Vendors' names for the maximum number of tokens of a reply."""


class BudgetCallback(BaseCallbackHandler):
    """Reserves each chat model call inside a runnable in the limits of the surrounding run.

    The reservation that was made for the runnable itself is released at the first call, since the number of its calls
    was unknown then.
    """

    raise_error = True
    """A refused call must not be made. The methods are sync because LangChain only logs the errors of async ones."""

    def __init__(self, name: str, price: Price | None, *, checks_price: bool = False) -> None:
        """Creates a handler for the calls of the runnable `name`.

        Args:
            name: the runnable's name.
            price: of the tokens of its models.
            checks_price: whether a call of a model with another price makes the price unknown.
        """
        self._name, self.price = name, price
        self._checks_price = checks_price
        scope = current_scope.get()
        self._budget, self._runnable_reservation = scope.budget, scope.reservation
        self._reservations: dict[UUID, Reservation] = {}
        self.usages: list[Usage] = []
        """The reported usage of each call."""
        self._lock = threading.Lock()
        self._closed = False

    @override
    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], *, run_id: UUID, **kwargs: Any
    ) -> None:
        """Waits for room in the budget.

        Raises:
            LimitError: the limits leave no room for this call.
            ModelError: the runnable has ended.
        """
        model: dict[str, Any] = kwargs.get("metadata") or {}
        if model.get("ls_provider") == PROVIDER:  # a conductor reserves its calls itself
            return
        if self._checks_price and price_of_chat(model) != self.price:  # such as a model that only a tool's code names
            self.price = None
        if self._budget is None:
            return
        with self._ensure_open():
            if self._runnable_reservation is not None:
                self._runnable_reservation.release()
        prompt = [message for conversation in messages for message in conversation]
        reservation = self._budget.reserve(self._name, upper_bound(_estimate_request(prompt, kwargs), self.price))
        _acquire(reservation)
        try:
            with self._ensure_open():
                reservation.begin()
                self._reservations[run_id] = reservation
        except ModelError:
            reservation.budget.release(reservation)
            raise

    @override
    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Charges the reported usage of the call."""
        reservation = self._pop_reservation(run_id)
        if reservation is None:
            return
        for generation in (item for candidates in response.generations for item in candidates):
            if isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage):
                usage = reply_usage(generation.message, self.price)
                reservation.commit(usage)
                self.usages.append(usage)
        reservation.budget.release(reservation)

    @override
    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Charges the whole reservation, since the failed call may have been billed."""
        if (reservation := self._pop_reservation(run_id)) is not None:
            reservation.budget.release(reservation)

    def close(self) -> None:
        """Releases the remaining reservations: LangChain does not report the end of cancelled calls."""
        with self._lock:
            self._closed = True
            abandoned, self._reservations = self._reservations, {}
        for reservation in abandoned.values():
            reservation.budget.release(reservation)

    @contextmanager
    def _ensure_open(self) -> Iterator[None]:
        """Holds the lock while open; threads of a cancelled runnable go on and may make calls after its end."""
        with self._lock:
            if self._closed:
                raise ModelError(f"{self._name} has ended, so it can't call a model any more", model=self._name)
            yield

    def _pop_reservation(self, run_id: UUID) -> Reservation | None:
        with self._lock:
            return self._reservations.pop(run_id, None)


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
    """Whether a record of LangChain's is not about this callback, whose errors are always raised as well."""
    return not isinstance(record.args, tuple) or BudgetCallback.__name__ not in record.args


logging.getLogger(handle_event.__module__).addFilter(_is_about_others)


@contextmanager
def enforce_budget(name: str, price: Price | None, *, checks_price: bool = False) -> Iterator[BudgetCallback]:
    """Reserves the chat model calls of this block in the limits of the surrounding run.

    The arguments are those of `BudgetCallback`. If the block pauses, the signal gets the usage of its calls.
    """
    token = _callback.set(callback := BudgetCallback(name, price, checks_price=checks_price))
    try:
        yield callback
    except PauseSignal as pause:
        pause.usage = total(callback.usages)
        raise
    finally:
        callback.close()
        _callback.reset(token)


def disable_budget_callback() -> None:
    """Stops reserving calls in the current context, for a conductor, since its own budget reserves them."""
    _callback.set(None)
