"""Whether formulas have the same value; for the checker's process, which loads math-verify before it is asked."""

from __future__ import annotations

from rl_conductor.errors import ConfigError

try:
    from math_verify import parse, verify
except ImportError as missing:
    raise ConfigError("comparing formulas needs math-verify: pip install 'rl-conductor[bench]'") from missing


def verdict(expected: str, reply: str) -> tuple[bool, str | None]:
    """Whether math-verify holds `reply` to be worth `expected`, and what it read there."""
    found = parse(reply)
    right = verify(parse(f"\\boxed{{{expected}}}"), found)
    return right, str(found[-1]) if found else None
