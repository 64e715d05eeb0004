"""One question to a Conductor on behalf of a chat model: the run, told as LangChain's results, chunks and events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from langchain_core.callbacks import BaseRunManager, adispatch_custom_event
from langchain_core.messages import AIMessageChunk
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import set_config_context

from langchain_conductor.hosts import announcement, write_custom
from langchain_conductor.messages import NAME, lc_reply, lc_usage
from langchain_conductor.models import stop_counting
from langchain_conductor.tracing import UNSEEN, inside, note
from rl_conductor._internal.streams import callback_to_async_iterator
from rl_conductor.conductor import Conductor
from rl_conductor.trace.events import AnswerDelta, Event, Finished, Listener
from rl_conductor.trace.summary import Summary
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Completion, Request
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy


def facts(conductor: Conductor, completion: Completion, trace: Trace) -> dict[str, Any]:
    """The fields of an `AIMessage` for what is told beside the answer of `conductor`."""
    model = conductor.name.partition(":")[2]
    told = {"model_name": model, "model_provider": NAME, "finish_reason": completion.finish_reason}
    return {
        "usage_metadata": lc_usage(completion.usage),
        "response_metadata": {**told, "conductor": Summary.of(trace).model_dump(mode="json")},
    }


@dataclass(frozen=True)
class Asked:
    """A question, and who is to answer it."""

    conductor: Conductor
    request: Request
    policy: Policy | None
    limits: Limits | None

    def check(self) -> None:
        """See to it that some workflow may run.

        Raises:
            PolicyError: none may.
        """
        self.conductor.check(self.request, policy=self.policy, limits=self.limits)

    async def answer(self, run: BaseRunManager | None) -> ChatResult:
        """The answer, whole; `run` is the chat model's, if one is traced.

        Raises:
            RunError: there is none; `error.trace` says why.
        """
        async with aclosing(self._events(run, stream=False)) as events:
            traces = [event.trace async for event in events if isinstance(event, Finished)]
        completion = traces[0].completion
        assert completion is not None
        message = lc_reply(completion.message, **facts(self.conductor, completion, traces[0]))
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def chunks(self, run: BaseRunManager | None) -> AsyncGenerator[ChatGenerationChunk, None]:
        """The answer as the final worker writes it; the last chunk alone carries usage, tool calls and facts.

        Raises:
            RunError: there is none; `error.trace` says why.
        """
        async with aclosing(self._events(run, stream=True)) as events:
            async for event in events:
                if isinstance(event, AnswerDelta):
                    yield ChatGenerationChunk(message=AIMessageChunk(content=event.text))
                elif isinstance(event, Finished) and event.trace.completion is not None:
                    yield ChatGenerationChunk(message=self._last(event.trace.completion, event.trace))

    def _last(self, completion: Completion, trace: Trace) -> AIMessageChunk:
        calls = [
            tool_call_chunk(name=call.name, args=call.arguments or "{}", id=call.id, index=index)
            for index, call in enumerate(completion.message.tool_calls)
        ]
        return AIMessageChunk(
            content="",
            additional_kwargs=lc_reply(completion.message).additional_kwargs,
            tool_call_chunks=calls,
            chunk_position="last",
            **facts(self.conductor, completion, trace),
        )

    async def _events(self, run: BaseRunManager | None, *, stream: bool) -> AsyncGenerator[Event, None]:
        """The run's events, announced to whoever listens. Closing the iterator cancels the run."""

        def asking(tell: Listener) -> Coroutine[Any, Any, Trace]:
            def heard(event: Event) -> None:
                note(event)
                tell(event)

            return self.conductor.run(
                self.request, policy=self.policy, limits=self.limits, on_event=heard, stream=stream
            )

        config = inside(run)
        with set_config_context(config) as context:
            context.run(stop_counting)
            async with aclosing(callback_to_async_iterator(asking, context=context)) as events:
                async for event in events:
                    if run is not None and (announced := announcement(event)):
                        await _announce(run, config, announced)
                    yield event


async def _announce(run: BaseRunManager, config: RunnableConfig, told: dict[str, Any]) -> None:
    """Tell handlers, and whoever streams the graph around in the mode `custom`; not of what a worker does inside."""
    await adispatch_custom_event(told["type"], told, config=config)
    if UNSEEN not in run.inheritable_tags:
        write_custom(told)
