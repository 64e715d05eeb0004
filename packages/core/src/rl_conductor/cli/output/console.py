"""Consoles for stdout and stderr, and escaping of untrusted text for terminals.

Answers and data go to stdout; progress, summaries and errors to stderr.
"""

from __future__ import annotations

import codecs
import json
import re
import sys

from rich.console import Console
from rich.text import Text

_SEQUENCE = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])|\x9b[0-?]*[ -/]*[@-~]"
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
_UNFIT = re.compile(f"{_SEQUENCE}|{_CONTROL}")
_RAW = re.compile(r"[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_NOT_ASCII = re.compile(r"[^\x00-\x7e]")


def stdout() -> Console:
    """The console for answers and data."""
    return Console(markup=False, highlight=False, emoji=False)


def stderr() -> Console:
    """The console for progress, summaries and errors."""
    return Console(stderr=True, markup=False, highlight=False, emoji=False)


def clean(text: str) -> str:
    """Removes escape sequences and control characters from `text`, except line breaks and tabs."""
    return _UNFIT.sub("", text)


def one_line(text: str) -> str:
    """Cleans `text` and joins its lines."""
    return " ".join(clean(text).split())


def write_json(text: str) -> None:
    """Prints JSON text, with control characters escaped that JSON permits unescaped.

    Unless stdout is UTF-8, all characters but ASCII are escaped: `OutputStream` would replace those it can't encode.
    """
    unfit = _RAW if codecs.lookup(sys.stdout.encoding).name == "utf-8" else _NOT_ASCII
    sys.stdout.write(unfit.sub(lambda match: json.dumps(match[0])[1:-1], text) + "\n")


def note(console: Console, text: str, style: str = "dim") -> None:
    """Prints a remark: wrapped in a terminal, as a single line in a log."""
    console.print(Text(text, style=style), soft_wrap=not console.is_terminal)


def fail(message: str) -> None:
    """Prints an error to stderr in one line."""
    console = stderr()
    line = Text.assemble(("error: ", "bold red"), one_line(message))
    console.print(line, soft_wrap=not console.is_terminal)
