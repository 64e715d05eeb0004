"""Vendors' HTTP services on loopback, which plan, answer, call tools and fill in schemas."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from core.models.wire.anthropic import AnthropicWire
from core.models.wire.base import Counts, Said, Seen, Wire
from core.models.wire.openai import OpenAIWire

COUNTS = Counts(input=100, cached=40, output=30, reasoning=20)
REFUSAL = "I can't help with that."
TRUNCATED_JSON = '{"city": "U'
REASONING_TOKENS = 2000
"""The reasoning of the model `reasoning` of the Responses API."""
REPEATED_ROLE = ('"delta": {"content"', '"delta": {"role": "assistant", "content"')
PLAN = {
    "reasoning": "One drafts, one answers.",
    "steps": [
        {"subtask": "Draft an answer.", "worker": 0, "access": []},
        {"subtask": "Answer.", "worker": 1, "access": ["all"]},
    ],
}


@dataclass(frozen=True)
class Asked(Seen):
    """A request with its whole body."""

    body: Any = None


class Vendor(OpenAIWire):
    """OpenAI's protocol; answers the request for any model name."""

    def read(self, wire: Wire) -> Seen:
        """Parses a request; the model `whole` streams nothing, whatever is asked for."""
        seen = super().read(wire)
        stream = seen.stream and seen.scenario != "whole"
        return Asked(**{**vars(seen), "stream": stream}, body=wire.body)

    def whole(self, seen: Seen, said: Said) -> Any:
        """A `chat.completion`; of the model `refusing` a refusal."""
        completion = super().whole(seen, _reply(seen))
        if seen.scenario == "refusing":
            completion["choices"][0]["message"] = {"role": "assistant", "content": None, "refusal": REFUSAL}
        return completion

    def events(self, seen: Seen, said: Said) -> list[str]:
        """Its chunks; of the model `repeating` each with the role."""
        events = super().events(seen, _reply(seen))
        if seen.scenario == "repeating":  # as Ollama does
            return [event.replace(*REPEATED_ROLE) for event in events]
        return events


class AnthropicVendor(AnthropicWire):
    """The same in Anthropic's protocol."""

    def read(self, wire: Wire) -> Seen:
        """Parses a request of the vendor's package or of LangChain's, which sends strings for texts."""
        headers = {"authorization": f"Bearer {wire.headers.get('x-api-key')}", **wire.headers}
        messages = [{**message, "content": _blocks(message["content"])} for message in wire.body["messages"]]
        normalized = replace(wire, headers=headers, body={**wire.body, "messages": messages})
        return Asked(**vars(super().read(normalized)), body=wire.body)

    def whole(self, seen: Seen, said: Said) -> Any:
        """A `message`."""
        return super().whole(seen, _reply(seen))

    def events(self, seen: Seen, said: Said) -> list[str]:
        """Its frames."""
        return super().events(seen, _reply(seen))


class ResponsesVendor(Vendor):
    """OpenAI's Responses API, where a reply that ended early is `incomplete`; its models only write texts."""

    def read(self, wire: Wire) -> Seen:
        """Parses a request, whose schema is ignored."""
        return Asked(scenario=wire.body["model"], stream=bool(wire.body.get("stream")), body=wire.body)

    def whole(self, seen: Seen, said: Said) -> Any:
        """A `response`."""
        assert isinstance(seen, Asked)
        said = _responses_reply(seen)
        reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(said.finish)
        status = "incomplete" if reason else "completed"
        content = [{"type": "output_text", "text": said.text, "annotations": []}]
        message = {"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": content}
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "model": seen.scenario,
            "status": status,
            "incomplete_details": reason and {"reason": reason},
            "output": [{"id": "rs_1", "type": "reasoning", "summary": []}, *([message] if said.pieces else [])],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": said.counts.input,
                "input_tokens_details": {"cached_tokens": said.counts.cached},
                "output_tokens": said.counts.output,
                "output_tokens_details": {"reasoning_tokens": said.counts.reasoning},
                "total_tokens": said.counts.input + said.counts.output,
            },
        }

    def events(self, seen: Seen, said: Said) -> list[str]:
        """Deltas of the text, then the whole response."""
        response = self.whole(seen, said)
        texts = [part["text"] for item in response["output"] for part in item.get("content", ())]
        place = {"item_id": "msg_1", "output_index": 1, "content_index": 0, "logprobs": []}
        events = [{"type": "response.output_text.delta", **place, "delta": text} for text in texts]
        events.append({"type": f"response.{response['status']}", "response": response})
        numbered = [{**event, "sequence_number": number} for number, event in enumerate(events)]
        return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in numbered]


def _responses_reply(asked: Asked) -> Said:
    if asked.scenario == "filtering":
        return Said(pieces=("Once upon",), finish="content_filter", counts=COUNTS)
    if asked.scenario == "truncating":
        return Said(pieces=(TRUNCATED_JSON,), finish="length", counts=COUNTS)
    if asked.scenario == "reasoning" and asked.body["max_output_tokens"] <= REASONING_TOKENS:
        return Said(finish="length", counts=COUNTS)
    return Said(pieces=(json.dumps(PLAN),), counts=COUNTS)


def _blocks(content: Any) -> Any:
    """Content blocks, also inside the results of tools."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [
        {**block, "content": _blocks(block.get("content", ""))} if block["type"] == "tool_result" else block
        for block in content
    ]


def _reply(seen: Seen) -> Said:
    assert isinstance(seen, Asked)
    if seen.scenario == "truncating":
        return Said(pieces=(TRUNCATED_JSON[:5], TRUNCATED_JSON[5:]), finish="length", counts=COUNTS)
    if seen.scenario == "chatty":
        return Said(pieces=("Sure! Here it is:\n", json.dumps(PLAN)), counts=COUNTS)
    if seen.scenario == "wordy":
        return Said(pieces=("I'd rather", " not."), counts=COUNTS)
    if seen.schema is not None:
        text = json.dumps(_filled(seen.schema, seen.text))
        return Said(pieces=(text[:-5], text[-5:]), counts=COUNTS)
    wants_json = "nothing other than JSON" in seen.text  # where the protocol has no option for it
    if wants_json or seen.body.get("response_format", {}).get("type") == "json_object":
        return Said(pieces=('{"setup": "Why?", ', '"punchline": "Meow."}'), counts=COUNTS)
    if seen.tools and seen.tool_choice != "none" and not _brings_results(seen.body["messages"][-1]):
        return Said(calls=(_call(seen),), finish="tool_calls", counts=COUNTS)
    pieces = ("A", " draft.") if seen.scenario == "gpt-4o" else ("Hello", " to", " you", ".")
    return Said(pieces=pieces, counts=COUNTS)


def _brings_results(message: dict[str, Any]) -> bool:
    blocks = message["content"] if isinstance(message["content"], list) else []
    return message["role"] == "tool" or any(block["type"] == "tool_result" for block in blocks)


def _call(seen: Asked) -> tuple[str, str, str]:
    wanted = seen.tool_choice if seen.tool_choice in seen.tools else seen.tools[0]
    functions = {tool["name"]: tool for tool in (tool.get("function", tool) for tool in seen.body["tools"])}
    schema = functions[wanted].get("parameters") or functions[wanted].get("input_schema", {})
    return "call_1", wanted, json.dumps(_filled(schema, seen.text))


def _filled(schema: dict[str, Any], text: str) -> dict[str, Any]:
    """An object of `schema`, with the numbers and the quoted words of `text`."""
    if "steps" in schema.get("properties", {}):
        return PLAN
    number, quoted = re.search(r"\d+", text), re.search(r"'([^']+)'", text)
    values = {"integer": int(number[0]) if number else 0, "string": quoted[1] if quoted else "something"}
    return {name: values.get(field.get("type")) for name, field in schema.get("properties", {}).items()}
