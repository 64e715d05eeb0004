"""Runs the programs of `examples/migrating` against a scripted vendor on loopback, and counts calls and prompt tokens.

The standard library only, because it also runs in the environment of `tests/with_frameworks`.
"""

from __future__ import annotations

import json
import math
import re
import runpy
from contextlib import redirect_stdout
from difflib import SequenceMatcher, unified_diff
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from core.models.wire.base import Counts, Said, Seen, Wire
from core.models.wire.openai import OpenAIWire

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "examples" / "migrating"
PAGE = ROOT / "docs" / "migrating.md"

REPLY = (
    "Take the Heron: its belt needs no oil, it costs 460 euros less, and the 2.6 kg that it weighs more hardly matter "
    "on a flat way of 12 km. Take the Kestrel only if you carry it up the stairs every day."
)
"""The scripted reply to everything that is neither a plan nor a decision."""
CHARACTERS_PER_TOKEN = 4

QUESTION = "Heron or Kestrel for a daily commute of 12 km?"
DELEGATE = "delegate_work_to_coworker"
"""The tool of CrewAI's manager."""
SPEAKER_PROMPT = "Then select the next role"
"""A part of the prompt by which AutoGen selects the next speaker."""
SELECTION_PROMPT = "Some choices are given below."
"""A part of the prompt of LlamaIndex's selector."""
SELECTION = json.dumps([{"choice": number, "reason": "It is asked for."} for number in (1, 2)])


class Measured(NamedTuple):
    """The cost and the output of a program."""

    calls: int
    prompt_tokens: int
    output: str


class ScriptedVendor(OpenAIWire):
    """Plans, routes, hands over and answers as a cooperative model would, always in the same way."""

    def __init__(self) -> None:
        super().__init__()
        self.team: tuple[str, ...] = ()
        """The specialists that a manager or planner uses, in this order."""

    def read(self, wire: Wire) -> Seen:
        """Parses a request; the scenario stays `echo`, as the replies depend on the body."""
        seen = super().read(wire)
        self._body = wire.body
        return seen

    def whole(self, seen: Seen, said: Said) -> Any:
        """A `chat.completion`."""
        return super().whole(seen, self._reply())

    def events(self, seen: Seen, said: Said) -> list[str]:
        """Its chunks."""
        return super().events(seen, self._reply())

    def _reply(self) -> Said:
        counts = Counts(input=prompt_tokens(self._body), output=math.ceil(len(REPLY) / CHARACTERS_PER_TOKEN))
        text = _text(self._body)
        schema = (self._body.get("response_format") or {}).get("json_schema", {}).get("schema")
        tools = {tool["function"]["name"]: tool["function"] for tool in self._body.get("tools") or ()}
        _, _, models = text.partition("The models")
        if roster := re.findall(r"^(\d+) ([\w.-]+)", models, re.MULTILINE):
            return Said(pieces=(self._plan(roster, as_json=schema is not None),), counts=counts)
        if schema is not None:
            return Said(pieces=(json.dumps(self._decide(schema, text)),), counts=counts)
        if (call := self._call(tools)) is not None:
            name, arguments = call
            made = (f"call_{len(self._body['messages'])}", name, json.dumps(arguments))
            return Said(calls=(made,), finish="tool_calls", counts=counts)
        if SPEAKER_PROMPT in text:
            return Said(pieces=(self.team[text.count(REPLY)],), counts=counts)
        return Said(pieces=(SELECTION if SELECTION_PROMPT in text else REPLY,), counts=counts)

    def _plan(self, roster: list[tuple[str, str]], *, as_json: bool) -> str:
        """Writes a plan in which each specialist does a step and reads the earlier ones."""
        numbers = {name: int(number) for number, name in roster}
        workers = [numbers[name] for name in self.team]
        subtasks = [f"Do the part of the {name}." for name in self.team]
        access = [["all"] if index else [] for index in range(len(self.team))]
        if not as_json:
            lists = {"model_id": workers, "subtasks": subtasks, "access_list": access}
            return "\n".join(f"{name} = {json.dumps(values)}" for name, values in lists.items())
        columns = zip(subtasks, workers, access, strict=True)
        steps = [dict(zip(("subtask", "worker", "access"), column, strict=True)) for column in columns]
        return json.dumps({"reasoning": "Each specialist does a part.", "steps": steps})

    def _decide(self, schema: dict[str, Any], text: str) -> dict[str, Any]:
        """Fills in the schema of a router or of a manager who picks the next speaker."""
        if "destination" in schema["properties"]:
            return {"destination": self.team[0]}
        assert "next_speaker" in schema["properties"], schema
        turns = text.count(REPLY)
        speaker = self.team[turns] if turns < len(self.team) else None
        return {"terminate": speaker is None, "reason": "In order.", "next_speaker": speaker, "final_message": None}

    def _call(self, tools: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
        """Chooses the next tool call; `None` when everything was called."""
        called = [
            f"{call['function']['name']} {call['function']['arguments']}"
            for message in self._body["messages"]
            for call in message.get("tool_calls") or ()
        ]

        def is_called(name: str, argument: str = "") -> bool:
            return any(call.startswith(f"{name} ") and argument in call for call in called)

        if "look_up" in tools and not is_called("look_up"):
            return "look_up", {"bicycle": "Heron"}
        for name in self.team:
            if DELEGATE in tools and not is_called(DELEGATE, name):
                return DELEGATE, {"task": f"Do the part of the {name}.", "context": QUESTION, "coworker": name}
            if (handoff := f"transfer_to_{name}") in tools and not is_called(handoff):
                return handoff, {}
        return None


def prompt_tokens(body: dict[str, Any]) -> int:
    """Estimates the prompt's tokens: one for every four characters of messages, tools and schema."""
    parts = [body["messages"], body.get("tools") or [], body.get("response_format") or {}]
    return math.ceil(sum(len(json.dumps(part, ensure_ascii=False)) for part in parts) / CHARACTERS_PER_TOKEN)


def _text(body: dict[str, Any]) -> str:
    contents = [message.get("content") or "" for message in body["messages"]]
    return "\n".join(
        content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
        for content in contents
    )


def measure(vendor: ScriptedVendor, program: str, team: tuple[str, ...]) -> Measured:
    """Runs a program, whose environment leads to `vendor`, and counts what the vendor was asked."""
    vendor.team = team
    before, printed = len(vendor.requests), StringIO()
    with redirect_stdout(printed):
        runpy.run_path(str(PROGRAMS / f"{program}.py"), run_name="__main__")
    requests = [wire for wire in vendor.requests[before:] if wire.path.endswith("/chat/completions")]
    return Measured(len(requests), sum(prompt_tokens(wire.body) for wire in requests), printed.getvalue())


def changed_lines(before: str, after: str) -> tuple[int, int]:
    """Counts the lines that are removed and added between two programs, without blank ones."""
    old, new = (_lines(PROGRAMS / f"{name}.py") for name in (before, after))
    edits = [edit for edit in SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if edit[0] != "equal"]
    return sum(edit[2] - edit[1] for edit in edits), sum(edit[4] - edit[3] for edit in edits)


def diff(before: str, after: str) -> str:
    """Returns both programs as one diff, with all their lines."""
    old, new = ((PROGRAMS / f"{name}.py").read_text().splitlines() for name in (before, after))
    lines = list(unified_diff(old, new, n=1000, lineterm=""))[3:]
    return "\n".join(line.rstrip() for line in lines)


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.strip()]


class Row(NamedTuple):
    """A row of the page's table of costs; each pair is before and after."""

    lines: tuple[int, int]
    """Removed and added."""
    calls: tuple[int, int]
    prompt_tokens: tuple[int, int]


PROMPT_CHANGE = 0.15
"""Maximum relative change of prompts before the numbers on the page have to be measured again."""


def read_row(name: str) -> Row:
    """Reads the row of the table whose first cell begins with `name`."""
    row = re.search(rf"^\| {re.escape(name)}[^|]*\|([^|]*)\|([^|]*)\|([^|]*)\|", PAGE.read_text(), re.MULTILINE)
    assert row is not None, f"{PAGE} has no row {name!r}"
    lines, calls, tokens = (
        [int(number.replace(",", "")) for number in re.findall(r"[\d,]+", cell)] for cell in row.groups()
    )
    return Row((lines[0], lines[1]), (calls[0], calls[1]), (tokens[0], tokens[1]))


def check_row(name: str, before: Measured, after: Measured) -> None:
    """Compares measurements with the page: calls exactly, tokens up to `PROMPT_CHANGE`."""
    row, measured = read_row(name), (before.prompt_tokens, after.prompt_tokens)
    assert row.calls == (before.calls, after.calls)
    deviations = [abs(ours / theirs - 1) for ours, theirs in zip(measured, row.prompt_tokens, strict=True)]
    assert max(deviations) <= PROMPT_CHANGE, f"{name}: measured {measured}, the page says {row.prompt_tokens}"
