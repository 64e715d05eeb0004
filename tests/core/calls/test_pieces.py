from __future__ import annotations

from rl_conductor.calls.pieces import MAX_SMALL_PIECES, MIN_LATE_CHARS, PieceMerger, ReplyPieces


def test_pieces_are_passed_on_as_they_come_and_small_ones_late_in_a_long_answer_are_joined() -> None:
    passed_on: list[str] = []
    merger = PieceMerger(passed_on.append)
    pieces = [f"{number % 10}" for number in range(MAX_SMALL_PIECES + MIN_LATE_CHARS + 1)]
    for piece in pieces:
        merger.add(piece)
    assert len(passed_on) == MAX_SMALL_PIECES + 1
    merger.end()
    merger.end()
    assert len(passed_on) == MAX_SMALL_PIECES + 2
    assert "".join(passed_on) == "".join(pieces)


def test_large_pieces_are_never_joined() -> None:
    passed_on: list[str] = []
    merger = PieceMerger(passed_on.append)
    for _ in range(MAX_SMALL_PIECES + 10):
        merger.add("x" * MIN_LATE_CHARS)
    assert len(passed_on) == MAX_SMALL_PIECES + 10


def test_reasoning_is_passed_on_before_the_text_that_follows_it() -> None:
    passed_on: list[tuple[str, str]] = []
    pieces = ReplyPieces(lambda text: passed_on.append(("text", text)), lambda text: passed_on.append(("why", text)))
    for _ in range(MAX_SMALL_PIECES + 1):
        pieces.add("", "x")
    pieces.add("a", "y")
    pieces.add("b", "")
    pieces.add("", "z")
    pieces.end()
    assert passed_on[MAX_SMALL_PIECES:] == [("why", "xy"), ("text", "a"), ("text", "b"), ("why", "z")]


def test_reasoning_that_nobody_asked_for_is_left_out() -> None:
    passed_on: list[str] = []
    pieces = ReplyPieces(passed_on.append, None)
    pieces.add("a", "why")
    pieces.end()
    assert passed_on == ["a"]
