"""Mathematical equality by math-verify. Runs in a `CheckerProcess`, which imports math-verify once."""

from __future__ import annotations

from math_verify import parse, verify


def compare_values(expected: str, reply: str) -> tuple[bool, str | None]:
    """Whether the last formula in `reply` equals `expected`, and the formula that math-verify extracted."""
    formulas = parse(reply)
    is_equal = verify(parse(f"\\boxed{{{expected}}}"), formulas)
    return is_equal, str(formulas[-1]) if formulas else None
