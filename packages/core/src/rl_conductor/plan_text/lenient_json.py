"""Parses malformed JSON and Python literals from models: any quotes, missing brackets, comments, bare words.

Nothing is evaluated and parsing never fails: unrecognised text is skipped, and every repair is noted. The work is
bounded for any text.

The package `json-repair` (0.64) doesn't fit: it reports no offset to continue at, takes time quadratic in the length of
some texts (2 s for 8,000 characters of unclosed quotes), and splits strings at an apostrophe (`'Don't guess'`).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cache
from typing import Any

MAX_VALUES = 2_000
MAX_DEPTH = 8
MAX_STRING = 10_000

QUOTES = "\"'`“”„‘’«"
CLOSING = {"“": '”“"', "”": '”“"', "„": '”“"', "‘": "’‘'", "’": "’‘'", "«": "»"}
"""The characters that may close a string, by opening quote; other quotes close with themselves."""
VALUE = rf"[{QUOTES}\[\](){{}}\d#+-]|\w+\s*[:=]|(?i:true|false|none|null|all|(?:model|worker)[ _]?\d+)\b"
ENDING = rf"(?:\s*(?:\Z|[\]}}):#]|,\s*(?:\Z|{VALUE}))|[ \t]*\n\s*[{QUOTES}{{])"
"""The text that follows a closing quote; a quote in front of anything else is part of the string."""
SKIPPED = re.compile(r"(?:[\s,]|(?:#(?!\d)|//)[^\n]*)*")
BARE = re.compile(r"[^\[\](){},\n\"“”„«»]+")
KEY = re.compile(rf"[{QUOTES}]?([A-Za-z][\w -]{{0,30}})[{QUOTES}]?\s{{0,9}}[:=]")
INTEGER = re.compile(r"[+-]?\d{1,9}(?:\.0{1,9})?(?=[\s,\])}]|\Z)")
CONSTANTS = {"true": True, "false": False, "none": None, "null": None}
ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|[\"'\\/nrt]|[bf](?![A-Za-z]))")
"""Excludes `\\b` and `\\f` before a letter, which start a LaTeX command (`\\beta`, `\\frac`)."""
ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

CLOSED = "a missing bracket was added"
COMMENTED = "comments were dropped"
CUT = "a part that was too deep or too long was dropped"
REQUOTED = "quotes other than double quotes were accepted"
UNENDED = "a string without a closing quote was ended with its line"
UNQUOTED = "a word without quotes was taken as text"


class LenientReader:
    """Parses values from `text` at the offset `at` and advances it; no value extends past the next of `stops`."""

    def __init__(self, text: str, stops: list[int]) -> None:
        self.text = text
        self.at = 0
        self.notes: list[str] = []
        self._stops = [*stops, len(text)]
        self._values = 0

    def value(self, depth: int = 0) -> Any:
        """Parses the value at `at`: a list, a dict, a string, a number, a boolean or `None`."""
        self._values += 1
        if self._values > MAX_VALUES or depth > MAX_DEPTH:
            self.notes.append(CUT)
            self.at = len(self.text)
            return None
        sign = self.text[self.at]
        if sign in "[(":
            return self._list(depth)
        if sign == "{":
            return self._dict(depth)
        return self._string(sign) if sign in QUOTES else self._bare()

    def values(self) -> list[Any]:
        """Parses all values from `at` on."""
        items = []
        while self._next(len(self.text)):
            items.append(self.value())
        return items

    def _list(self, depth: int) -> list[Any]:
        self.at += 1
        stop = self._stop()
        items = []
        while (sign := self._next(stop)) not in ("", "]", ")", "}"):
            items.append(self.value(depth + 1))
        self._close(sign in ("]", ")"))
        return items

    def _dict(self, depth: int) -> dict[str, Any]:
        self.at += 1
        stop = self._stop()
        items = {}
        while self._next(stop) and (key := KEY.match(self.text, self.at, stop)):
            self.at = key.end()
            if self._next(stop) not in ("", "]", ")", "}"):
                items[key[1].strip().lower()] = self.value(depth + 1)
        self._close(self._next(stop) == "}")
        return items

    def _string(self, sign: str) -> str:
        stop = min(self._stop(), self.at + MAX_STRING)
        wide = self.text.startswith(sign * 3, self.at)
        if sign != '"' or wide:
            self.notes.append(REQUOTED)
        match = _string_from(sign * 3 if wide else sign).match(self.text, self.at, stop)
        if match is None:
            self.notes.append(UNENDED)
            line = self.text[self.at + 1 : stop].split("\n", 1)[0]
            self.at += 1 + len(line)
            return unescape(line.rstrip(" \t\r,)]}"))
        self.at = match.end()
        return unescape(match[1])

    def _bare(self) -> Any:
        stop = self._stop()
        if number := INTEGER.match(self.text, self.at, stop):
            self.at = number.end()
            return int(float(number[0]))
        match = BARE.match(self.text, self.at, stop)
        self.at = match.end() if match else self.at + 1
        word = match[0].strip(" \t\r'`*_;") if match else "none"
        if word.lower() in CONSTANTS:
            return CONSTANTS[word.lower()]
        self.notes.append(UNQUOTED)
        return word

    def _next(self, stop: int) -> str:
        """Skips whitespace, commas and comments, and returns the next character; empty when `stop` comes first."""
        skipped = SKIPPED.match(self.text, self.at, stop)
        if skipped and skipped[0]:
            self.at = skipped.end()
            self.notes += [COMMENTED] if re.search(r"#|//", skipped[0]) else []
        return self.text[self.at : min(self.at + 1, stop)]

    def _close(self, closed: bool) -> None:
        self.at += closed
        self.notes += [] if closed else [CLOSED]

    def _stop(self) -> int:
        return self._stops[bisect_right(self._stops, self.at, hi=len(self._stops) - 1)]


def unescape(text: str) -> str:
    """Decodes JSON escapes in `text`; other backslashes, such as in formulas, stay."""
    text = ESCAPE.sub(lambda match: ESCAPED.get(match[1]) or _character(match[1]), text)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _character(escape: str) -> str:
    return chr(int(escape[1:], 16)) if len(escape) > 1 else escape


@cache
def _string_from(opening: str) -> re.Pattern[str]:
    """Compiles the pattern of a string that starts with `opening`; group 1 is its content."""
    ends = f"[{CLOSING.get(opening, opening)}]" if len(opening) == 1 else opening
    # Like `(...*+)`, which Python before 3.11.5 gets wrong for alternatives.
    return re.compile(rf"{opening}(?=((?:\\.|(?!{ends}{ENDING})[^\\])*))\1{ends}", re.DOTALL)
