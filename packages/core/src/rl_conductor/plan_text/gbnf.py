"""Builds GBNF grammars: a set of deduplicated rules, and the rules for strings and lines.

Independent of plans and policies. Uses only the syntax that llama.cpp, XGrammar and llguidance interpret identically.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from rl_conductor.errors import ConfigError

MAX_ALTERNATIVES = 8_000
"""Maximum size of a grammar; engines compile one of this size in less than half a second."""

CONTROL = ((0x00, 0x1F),)
BLANK = (
    (0x20, 0x20),
    (0x85, 0x85),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
)
"""The characters that `str.lstrip` removes, without control characters."""


class GrammarTooLarge(ConfigError):  # noqa: N818 - the rules are valid, just too many
    """The grammar would be too large; decode without one and let `PlanSpace.check` reject forbidden plans."""


class GrammarRules:
    """A set of rules in which equal rules share one name, so that independent choices do not multiply."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, ...], str] = {}
        self._size = 0

    def add(self, alternatives: Iterable[str]) -> str | None:
        """Adds a rule and returns its name; `None` when there are no alternatives.

        Raises:
            GrammarTooLarge: there are too many alternatives in total.
        """
        key = tuple(alternatives)
        if key and key not in self._names:
            self._size += len(key)
            if self._size > MAX_ALTERNATIVES:
                raise GrammarTooLarge(f"the rules of this space take more than {MAX_ALTERNATIVES} alternatives")
            self._names[key] = f"r{len(self._names)}"
        return self._names.get(key)

    def add_grouped(self, choices: Iterable[tuple[str, str | None]]) -> str | None:
        """Adds a rule of (literal, next rule) pairs, grouped by next rule; pairs without one are dropped."""
        groups: dict[str, list[str]] = {}
        for text, after in choices:
            if after is not None:
                groups.setdefault(after, []).append(quote_literal(text))
        return self.add(f"{self.add(texts)} {after}".rstrip() for after, texts in groups.items())

    def text(self, first: Mapping[str, str]) -> str:
        """Renders the grammar: the named rules `first`, then the added ones."""
        added = {name: " | ".join(alternatives) for alternatives, name in self._names.items()}
        return "".join(f"{name} ::= {body}\n" for name, body in {**first, **added}.items())


def quote_literal(text: str) -> str:
    """Renders `text` as a literal of the grammar."""
    return json.dumps(text)


def any_but(characters: str, *spans: tuple[int, int]) -> str:
    """Renders the class of all characters but `characters` and the code points in `spans`.

    The class is not negated, since XGrammar would allow surrogates in a negated class.
    """
    surrogates, end = (0xD800, 0xDFFF), (0x110000, 0x110000)
    ranges, start = "", 0
    for low, high in sorted([*((ord(character), ord(character)) for character in characters), *spans, surrogates, end]):
        if start < low:
            ranges += f"{_escape(start)}-{_escape(low - 1)}"
        start = max(start, high + 1)
    return f"[{ranges}]"


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else chr(code)


def string_rules(max_chars: int | None) -> dict[str, str]:
    """Creates the rule `string`: JSON strings of 1 to `max_chars` characters that don't start with a blank.

    Without a limit, runs of plain characters are a rule of their own, for which XGrammar can precompute token masks.
    """
    plain = any_but('"\\', *CONTROL)
    escape = r'"\\" ["\\bfnrt] | "\\u00" ("0" [0-7bef] | "1" [0-9a-f])'
    if max_chars is None:
        rest = {"rest": "(run escape)* run", "run": f"{plain}*", "escape": escape}
    else:
        rest = {"rest": f"char{{0,{max_chars - 1}}}", "char": f"{plain} | {escape}"} if max_chars > 1 else {}
    return {
        "string": r'"\"" first rest "\""' if rest else r'"\"" first "\""',
        "first": any_but('"\\', *CONTROL, *BLANK) + r' | "\\" ["\\b] | "\\u00" ("0" [0-7ef] | "1" [0-9ab])',
        **rest,
    }


def line_rule(max_chars: int | None, *, not_first: str) -> str:
    """Creates a rule for a line of 1 to `max_chars` characters that doesn't start like a plan, code fence or bullet.

    It doesn't start with one of the characters `not_first` either.
    """
    times = "*" if max_chars is None else f"{{0,{max_chars - 1}}}"
    return any_but(f"m{{`*#\x7f{not_first}", *CONTROL, *BLANK) + " " + any_but("\x7f", *CONTROL) + times + ' "\\n"'
