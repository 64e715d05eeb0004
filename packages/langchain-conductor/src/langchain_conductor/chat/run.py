"""`ChatRun`: one run of a Conductor for a chat model call, with its outcome as LangChain results, chunks and events."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from langchain_core.callbacks import BaseRunManager, UsageMetadataCallbackHandler, adispatch_custom_event
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import set_config_context

from langchain_conductor.custom_events import custom_data, write_custom
from langchain_conductor.messages import REASONING_KEY, lc_reply, lc_usage
from langchain_conductor.models.budget import disable_usage_callbacks
from langchain_conductor.run_errors import to_langchain_error
from langchain_conductor.tracing import NOSTREAM_TAG, child_config, track_event
from rl_conductor import Conductor
from rl_conductor.errors import RunError
from rl_conductor.integration import callback_to_async_iterator, token_counts
from rl_conductor.trace import AnswerDelta, Event, Finished, Listener, ReasoningDelta, Summary, Trace
from rl_conductor.types import Completion, Request
from rl_conductor.workflow import Limits, Policy


def answer_message(conductor: Conductor, trace: Trace) -> AIMessage:
    """Converts the answer of a run."""
    completion = trace.completion
    assert completion is not None
    is_refusal = completion.finish_reason == "content_filter"
    return lc_reply(completion.message, is_refusal=is_refusal, **_metadata(conductor, completion, trace))


def _metadata(conductor: Conductor, completion: Completion, trace: Trace) -> dict[str, Any]:
    """Builds the `usage_metadata` and `response_metadata` of the answer.

    They name no `model_provider`: LangChain would take the usage, which is that of all calls of the run, for the length
    of the conversation.
    """
    metadata = {"model_name": _model_name(conductor), "finish_reason": completion.finish_reason}
    return {
        "usage_metadata": lc_usage(completion.usage),
        "response_metadata": {**metadata, "conductor": Summary.of(trace).model_dump(mode="json")},
    }


def _model_name(conductor: Conductor) -> str:
    return conductor.name.partition(":")[2]


def combine_outputs(outputs: Iterable[Mapping[str, Any] | None]) -> dict[str, Any]:
    """Adds up the `llm_output` of several runs; cached replies have none."""
    combined: dict[str, Any] = {}
    total: Counter[str] = Counter()
    for output in filter(None, outputs):
        combined.update(output)
        total.update(output["token_usage"])
    return combined | ({"token_usage": dict(total)} if combined else {})


@dataclass(frozen=True)
class ChatRun:
    """One request of a chat model call and the Conductor that will answer it."""

    conductor: Conductor
    request: Request
    policy: Policy | None
    limits: Limits | None
    stream_drafts: bool = False
    call_config: RunnableConfig | None = None
    """The recursion limit and the `configurable` of the call, for the workers; `None` if it has no config."""
    include_rejected: bool = False
    """Whether an answer without the required format is returned, instead of the error about it."""

    def check(self) -> None:
        """Checks that the policy and the workers' capabilities allow the request.

        Raises:
            PolicyError: no workflow is allowed.
        """
        self.conductor.check(self.request, policy=self.policy, limits=self.limits)

    async def answer(self, run: BaseRunManager | None) -> ChatResult:
        """Returns the whole answer; `run` is the chat model's traced run.

        Raises:
            RunError: there is no answer; `error.trace` has the reason. It is also one of LangChain's `ModelError`s.
        """
        async with aclosing(self._events(run, stream=False)) as events:
            traces = [event.trace async for event in events if isinstance(event, Finished)]
        completion = traces[0].completion
        assert completion is not None
        message = answer_message(self.conductor, traces[0])
        metadata = message.response_metadata
        output = {"token_usage": token_counts(completion.usage), "model_name": metadata["model_name"]}
        return ChatResult(generations=[ChatGeneration(message=message)], llm_output=output)

    async def chunks(self, run: BaseRunManager | None) -> AsyncGenerator[ChatGenerationChunk, None]:
        """Streams the final worker's reasoning and tokens; only the last chunk has usage, tool calls and metadata.

        Raises:
            RunError: there is no answer; `error.trace` has the reason. It is also one of LangChain's `ModelError`s.
        """
        reasoning = ""
        async with aclosing(self._events(run, stream=True)) as events:
            async for event in events:
                match event:
                    case ReasoningDelta(text=text):
                        reasoning += text
                        chunk = AIMessageChunk(content="", additional_kwargs={REASONING_KEY: text})
                    case AnswerDelta(text=text):
                        chunk = AIMessageChunk(content=text)
                    case Finished(trace=trace) if trace.completion is not None:
                        chunk = self._last_chunk(trace, reasoning)
                    case _:
                        continue
                yield ChatGenerationChunk(message=chunk)

    def _last_chunk(self, trace: Trace, streamed_reasoning: str) -> AIMessageChunk:
        answer = answer_message(self.conductor, trace)
        extra = dict(answer.additional_kwargs)
        reasoning = extra.pop(REASONING_KEY, "")
        if not streamed_reasoning.endswith(reasoning):  # it may follow that of a failed attempt
            extra[REASONING_KEY] = reasoning.removeprefix(streamed_reasoning)
        refusal: Any = [block for block in answer.content if isinstance(block, dict) and block["type"] == "refusal"]
        chunk = AIMessageChunk(
            content=refusal or "",
            name=answer.name,
            additional_kwargs=extra,
            tool_calls=answer.tool_calls,
            invalid_tool_calls=answer.invalid_tool_calls,
            chunk_position="last",
            usage_metadata=answer.usage_metadata,
            response_metadata=answer.response_metadata,
        )
        for index, call in enumerate(chunk.tool_call_chunks):
            call["index"] = index  # by which consumers of streams put the pieces of a call together
        return chunk

    async def _events(self, run: BaseRunManager | None, *, stream: bool) -> AsyncGenerator[Event, None]:
        """Runs the Conductor and yields its events, also as custom events. Closing the iterator cancels the run."""

        def start(emit: Listener) -> Coroutine[Any, Any, Trace]:
            def on_event(event: Event) -> None:
                track_event(event)
                emit(event)

            return self.conductor.run(
                self.request, policy=self.policy, limits=self.limits, on_event=on_event, stream=stream
            )

        has_text = False
        config = child_config(run, self.call_config, stream_drafts=self.stream_drafts)
        try:
            with set_config_context(config) as context:
                context.run(disable_usage_callbacks)
                async with aclosing(callback_to_async_iterator(start, context=context)) as events:
                    async for event in events:
                        has_text = has_text or isinstance(event, AnswerDelta)
                        if self.include_rejected and isinstance(event, Finished) and (reply := event.trace.rejected):
                            if not has_text:
                                yield AnswerDelta(text=reply.text)
                            event = Finished(trace=event.trace.model_copy(update={"completion": reply}))  # noqa: PLW2901
                        if run is not None and (data := custom_data(event)):
                            await _dispatch(run, config, data)
                        yield event
        except RunError as error:
            if self.include_rejected and error.trace.rejected is not None:
                return
            if run is not None:
                _report_usage(run, self.conductor, error.trace)
            raise to_langchain_error(error) from None


def _report_usage(run: BaseRunManager, conductor: Conductor, trace: Trace) -> None:
    """Reports the usage of a failed run to handlers that count it, which get that of an answer from its message."""
    message = AIMessage(
        "", usage_metadata=lc_usage(trace.usage), response_metadata={"model_name": _model_name(conductor)}
    )
    for handler in run.handlers:
        if isinstance(handler, UsageMetadataCallbackHandler):
            handler.on_llm_end(LLMResult(generations=[[ChatGeneration(message=message)]]), run_id=run.run_id)


async def _dispatch(run: BaseRunManager, config: RunnableConfig, data: dict[str, Any]) -> None:
    """Sends a custom event to handlers, and to the surrounding graph's stream unless this run is inside a worker."""
    await adispatch_custom_event(data["type"], data, config=config)
    if NOSTREAM_TAG not in run.inheritable_tags:
        write_custom(data)
