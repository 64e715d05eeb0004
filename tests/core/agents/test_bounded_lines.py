"""Lines of a program's stdout: whole up to a length, and cut beyond."""

from __future__ import annotations

import codecs

import pytest

from rl_conductor.agents import bounded_lines
from rl_conductor.agents.bounded_lines import ENCODING


def decoded(*pieces: bytes) -> list[str]:
    decoder = codecs.getincrementaldecoder(ENCODING)()
    return [decoder.decode(piece) for piece in pieces]


def test_lines_are_decoded_like_utf_8_wherever_they_are_split() -> None:
    text = "one\n\nzwölf \u2028 still\nlast"
    for cut in range(len(text.encode())):
        assert "".join(decoded(text.encode()[:cut], text.encode()[cut:])) == text
    assert text.encode(ENCODING) == text.encode()


def test_a_line_that_is_too_long_ends_early_and_the_next_one_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_lines, "MAX_LINE_CHARS", 4)
    assert decoded(b"1234\n12", b"34", b"5", b"6", b"789\n12", b"3\n") == ["1234\n12", "34", "\n", "", "12", "3\n"]
    assert decoded(b"123456\n123456\n1") == ["1234\n1234\n1"]


def test_invalid_bytes_are_replaced() -> None:
    assert decoded(b"gr\xfc\xdfe\nnext") == ["gr\ufffd\ufffde\nnext"]
