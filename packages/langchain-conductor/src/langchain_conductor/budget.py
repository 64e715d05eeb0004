"""Limits for agents and chains: each call that a chat model in them makes is reserved before it is made."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.tracers.context import register_configure_hook
from pydantic_core import to_json
from typing_extensions import override

from langchain_conductor.messages import NAME, core_messages, core_usage
from rl_conductor.calls.budget import Reservation, current_budget, current_reservation
from rl_conductor.errors import ConfigError, ModelError
from rl_conductor.models.base import priced
from rl_conductor.types import Message, Price, Request, Sampling
from rl_conductor.workflow.limits import upper_bound

LONGEST = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""What vendors call the most tokens of a reply."""


class Budget(BaseCallbackHandler):
    """Holds room in the limits of the run around a runnable for each call of a chat model in it.

    The room that the runnable itself was given is handed back at the first one: nobody knew how many there would be.
    """

    raise_error = True  # a call that a limit refuses must not be made; sync, since else LangChain swallows the error

    def __init__(self, name: str, price: Price | None) -> None:
        """`name` is the runnable's, and `price` that of its models' tokens."""
        self._name, self._price = name, price
        self._ledger, self._around = current_budget.get(), current_reservation.get()
        self._held: dict[UUID, Reservation] = {}
        self._lock = threading.Lock()
        self._closed = False

    @override
    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], *, run_id: UUID, **kwargs: Any
    ) -> None:
        """Wait for room; raises `LimitError` when there will be none, and `ModelError` once the runnable has ended."""
        conducts = (kwargs.get("metadata") or {}).get("ls_provider") == NAME  # and so reserves its own calls
        if self._ledger is None or conducts:
            return
        with self._open():
            if self._around is not None:
                self._around.release()
        asked = [message for conversation in messages for message in conversation]
        held = self._ledger.reserve(self._name, upper_bound(_request(asked, kwargs), self._price))
        _enter(held)
        try:
            with self._open():
                held.begin()
                self._held[run_id] = held
        except ModelError:
            held.budget.release(held)
            raise

    @override
    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Charge what the call really used."""
        held = self._taken(run_id)
        if held is None:
            return
        for generation in (one for several in response.generations for one in several):
            if isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage):
                told = generation.message.usage_metadata
                held.commit(priced(core_usage(told), self._price if told else None))
        held.budget.release(held)

    @override
    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Charge it in full: it may have been billed."""
        if (held := self._taken(run_id)) is not None:
            held.budget.release(held)

    def close(self) -> None:
        """Give back what is still held: LangChain tells nobody of calls that were cancelled."""
        with self._lock:
            self._closed = True
            abandoned, self._held = self._held, {}
        for held in abandoned.values():
            held.budget.release(held)

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Not closed meanwhile; cancelling a runnable stops none of its threads, and these may ask later."""
        with self._lock:
            if self._closed:
                raise ModelError(f"{self._name} has ended, so it may call no model any more", model=self._name)
            yield

    def _taken(self, run_id: UUID) -> Reservation | None:
        with self._lock:
            return self._held.pop(run_id, None)


def _enter(held: Reservation) -> None:
    """Wait for room, in a thread of its own as LangChain calls back; on a loop's own thread nobody could make any."""
    entering = held.budget.acquire(held)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(entering)
        return
    try:
        entering.send(None)
    except StopIteration:
        return
    entering.close()
    raise ConfigError("an async worker calls its model by invoke(); write await model.ainvoke() so that it can wait")


def _request(asked: Sequence[BaseMessage], told: Mapping[str, Any]) -> Request:
    """What a chat model is asked, as far as its size matters."""
    settings = told.get("invocation_params") or {}
    longest = next((most for name in LONGEST if isinstance(most := settings.get(name), int) and most > 0), None)
    tools = Message.system(to_json(settings.get("tools") or [], fallback=str).decode())
    try:
        conversation = core_messages(asked)
    except ConfigError:  # it holds what our own workers don't take
        conversation = tuple(Message.user(to_json(one.content, fallback=str).decode()) for one in asked)
    return Request(messages=(tools, *conversation), sampling=Sampling(max_tokens=longest))


_budget: ContextVar[Budget | None] = ContextVar("conductor_budget", default=None)
register_configure_hook(_budget, inheritable=True)


@contextmanager
def budgeted(name: str, price: Price | None) -> Iterator[None]:
    """Calls of chat models in this block are reserved in the limits of the run around it."""
    token = _budget.set(budget := Budget(name, price))
    try:
        yield
    finally:
        budget.close()
        _budget.reset(token)


def leave_to_the_conductor() -> None:
    """Leave the calls of this context to a conductor, whose budget reserves them itself."""
    _budget.set(None)
