"""GBNF text: a book of rules that holds each rule once, and the rules that every plan grammar shares.

Knows nothing of plans and policies. Kept to what llama.cpp, XGrammar and llguidance all read alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from rl_conductor.errors import ConfigError

MOST_ALTERNATIVES = 8_000
"""Largest grammar we write; engines take less than half a second to read one of this size."""

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
"""What `str.lstrip` takes away, control characters aside."""


class GrammarTooLarge(ConfigError):  # noqa: N818 - it states a fact about the rules, not a fault in them
    """The rules take too many alternatives: decode without a grammar and let the check find what breaks them."""


class Rules:
    """Rules by their alternatives, so that equal rules share one name and independent choices do not multiply."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, ...], str] = {}
        self._size = 0

    def add(self, alternatives: Iterable[str]) -> str | None:
        """The name of the rule with these alternatives; `None` when there are none.

        Raises:
            GrammarTooLarge: the book is full.
        """
        key = tuple(alternatives)
        if key and key not in self._names:
            self._size += len(key)
            if self._size > MOST_ALTERNATIVES:
                raise GrammarTooLarge(f"the rules of this space take more than {MOST_ALTERNATIVES} alternatives")
            self._names[key] = f"r{len(self._names)}"
        return self._names.get(key)

    def grouped(self, choices: Iterable[tuple[str, str | None]]) -> str | None:
        """The rule of these (literal, what follows) pairs, those with equal sequels together and dead ends left out."""
        groups: dict[str, list[str]] = {}
        for text, after in choices:
            if after is not None:
                groups.setdefault(after, []).append(quoted(text))
        return self.add(f"{self.add(texts)} {after}".rstrip() for after, texts in groups.items())

    def text(self, first: Mapping[str, str]) -> str:
        """The whole grammar: the rules `first` by name, then those of the book."""
        written = {name: " | ".join(alternatives) for alternatives, name in self._names.items()}
        return "".join(f"{name} ::= {body}\n" for name, body in {**first, **written}.items())


def quoted(text: str) -> str:
    """`text` as a literal."""
    return json.dumps(text)


def any_but(characters: str, *spans: tuple[int, int]) -> str:
    """A class of every character but `characters` and those in `spans` of code points.

    It names what it holds, for in a class of what it doesn't XGrammar would allow surrogates, which are no characters.
    """
    surrogates, end = (0xD800, 0xDFFF), (0x110000, 0x110000)
    held, start = "", 0
    for low, high in sorted([*((ord(one), ord(one)) for one in characters), *spans, surrogates, end]):
        if start < low:
            held += f"{_escaped(start)}-{_escaped(low - 1)}"
        start = max(start, high + 1)
    return f"[{held}]"


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else chr(code)


def string_rules(most: int | None) -> dict[str, str]:
    """The rule `string`: what `json.dumps` makes of 1 to `most` characters of which the first is not blank.

    Without a limit, runs of plain characters stand alone, for that is what XGrammar knows the tokens of beforehand.
    """
    plain = any_but('"\\', *CONTROL)
    escape = r'"\\" ["\\bfnrt] | "\\u00" ("0" [0-7bef] | "1" [0-9a-f])'
    if most is None:
        rest = {"rest": "(run escape)* run", "run": f"{plain}*", "escape": escape}
    else:
        rest = {"rest": f"char{{0,{most - 1}}}", "char": f"{plain} | {escape}"} if most > 1 else {}
    return {
        "string": r'"\"" first rest "\""' if rest else r'"\"" first "\""',
        "first": any_but('"\\', *CONTROL, *BLANK) + r' | "\\" ["\\b] | "\\u00" ("0" [0-7ef] | "1" [0-9ab])',
        **rest,
    }


def line_rule(most: int | None) -> str:
    """A line of 1 to `most` characters, and its end, that does not start as a plan, a fence or a bullet does."""
    times = "*" if most is None else f"{{0,{most - 1}}}"
    return any_but("m{`*#\x7f", *CONTROL, *BLANK) + " " + any_but("\x7f", *CONTROL) + times + ' "\\n"'
