"""GBNF text: a book of rules that holds each rule once, and the rules that every plan grammar shares.

Knows nothing of plans and policies. Kept to what llama.cpp, XGrammar and llguidance all read alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from rl_conductor.errors import ConfigError

MOST_ALTERNATIVES = 20_000
"""Largest grammar we write."""

CONTROL = r"\x00-\x1f"
BLANK = r"\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
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


def string_rules(most: int) -> dict[str, str]:
    """The rule `string`: what `json.dumps` makes of 1 to `most` characters of which the first is not blank."""
    return {
        "string": r'"\"" first rest "\""' if most > 1 else r'"\"" first "\""',
        "first": rf'[^"\\{CONTROL}{BLANK}] | "\\" ["\\b] | "\\u00" ("0" [0-7ef] | "1" [0-9ab])',
        **({"rest": f"char{{0,{most - 1}}}"} if most > 1 else {}),
        "char": rf'[^"\\{CONTROL}] | "\\" ["\\bfnrt] | "\\u00" ("0" [0-7bef] | "1" [0-9a-f])',
    }


def line_rule(most: int) -> str:
    """A line of 1 to `most` characters, and its end, that does not start as a plan, a fence or a bullet does."""
    return rf'[^m{{`*#\x7f{CONTROL}{BLANK}] [^\x7f{CONTROL}]{{0,{most - 1}}} "\n"'
