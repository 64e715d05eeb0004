from __future__ import annotations

import json

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from core.runs import plan, pool_of
from rl_conductor import Conductor, Message, ScriptedModel
from rl_conductor.telemetry import content, instrument
from rl_conductor.types import Completion, FilePart, ImagePart, ReasoningPart, TextPart, ToolCall, Usage

CALL = ToolCall(id="1", name="look", arguments='{"at": "it"}')


def test_messages_are_written_as_the_conventions_say() -> None:
    thought = Message(role="assistant", content=(ReasoningPart(text="Hm."),), tool_calls=(CALL,))
    seen = (TextPart(text="What is it?"), ImagePart(data="aGk="), FilePart(data="aGk="))
    messages = (Message(role="user", content=seen), thought, Message.tool("1", "It is ü."))
    said = json.loads(content.input_messages(messages))
    call = {"type": "tool_call", "id": "1", "name": "look", "arguments": '{"at": "it"}'}
    assert said == [
        {
            "role": "user",
            "parts": [
                {"type": "text", "content": "What is it?"},
                {"type": "image", "mime_type": "image/png"},
                {"type": "file", "mime_type": "application/pdf"},
            ],
        },
        {"role": "assistant", "parts": [{"type": "reasoning", "content": "Hm."}, call]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "1", "response": "It is ü."}]},
    ]


@pytest.mark.parametrize(("calls", "ours", "theirs"), [((), "length", "length"), ((CALL,), "tool_calls", "tool_call")])
def test_a_reply_says_why_it_ended(calls: tuple[ToolCall, ...], ours: str, theirs: str) -> None:
    made = Completion.model_validate(
        {"message": Message.assistant("Yes.", tool_calls=calls), "usage": Usage(), "finish_reason": ours, "model": "m"}
    )
    (said,) = json.loads(content.output_messages(made))
    assert (said["role"], said["finish_reason"]) == ("assistant", theirs)


@pytest.mark.parametrize(
    ("value", "asked"),
    [("true", True), ("SPAN_ONLY", True), ("span_and_event", True), ("event_only", False), ("no_content", False)],
)
async def test_the_environment_decides_whether_spans_carry_what_was_said(
    monkeypatch: pytest.MonkeyPatch, value: str, asked: bool
) -> None:
    monkeypatch.setenv(content.CAPTURE, value)
    kept, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(kept))
    stop = instrument(tracer_provider=tracers)
    made = Conductor(ScriptedModel(plan((0, "Say it.", []))), pool_of(a="from a"), name="house")
    await made.run("Say something.")
    stop()
    said = {span.name: dict(span.attributes or {}) for span in kept.get_finished_spans()}
    for name in ("invoke_workflow house", "chat a"):
        assert ("gen_ai.input.messages" in said[name]) is asked
        assert ("from a" in str(said[name].get("gen_ai.output.messages"))) is asked
