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
        """Parses a request."""
        return Asked(**vars(super().read(wire)), body=wire.body)

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
