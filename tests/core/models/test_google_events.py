from __future__ import annotations

import pytest

from rl_conductor.models.google import events
from rl_conductor.models.google.events import EventReader
from rl_conductor.models.http.reply_limit import ReplyLimitError

STREAM = (
    ": a comment\n"
    'data: {"a": "é\u2028"}\n'
    "\n"
    "event: message\n"
    "id: 1\n"
    "retry: 10\n"
    "unknown: field\n"
    'data:{"b":\n'
    "data: 2}\n"
    "\n\n"
    "data:\n"
    "\n"
    "{\n"
    '  "error": {"code": 503}\n'
    "}\n"
    "\n"
    "data: last\n"
)
EVENTS = ['{"a": "é\u2028"}', '{"b":\n2}', '{\n  "error": {"code": 503}\n}', "last"]


def read(*pieces: bytes) -> list[str]:
    reader = EventReader()
    events = [event for piece in pieces for event in reader.add(piece)]
    return [event.decode() for event in (*events, *reader.end())]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_events_do_not_depend_on_how_the_stream_is_cut(line_end: str) -> None:
    stream = STREAM.replace("\n", line_end).encode()
    assert read(stream) == EVENTS
    assert read(*(stream[index : index + 1] for index in range(len(stream)))) == EVENTS
    assert all(read(stream[:index], b"", stream[index:]) == EVENTS for index in range(len(stream)))


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_an_event_is_there_as_soon_as_its_empty_line_is(line_end: str) -> None:
    assert list(EventReader().add(f"data: 1{line_end}{line_end}".encode())) == [b"1"]


def test_a_stream_without_events_has_none() -> None:
    assert read() == read(b"") == read(b"\n\n") == read(b"<html>\n</html>") == []


def test_an_event_of_many_lines_has_a_maximum_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_REPLY_BYTES", 100)
    assert len(read(b"data: 1\n\n" * 100)) == 100
    with pytest.raises(ReplyLimitError, match="larger than 100 bytes"):
        read(b"data: 1\n" * 100)
