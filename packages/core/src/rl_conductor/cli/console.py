"""The two streams, and how text that others wrote is made fit for a terminal.

Answers and data go to stdout; progress, summaries and errors to stderr.
"""

from __future__ import annotations

import re
import sys

from rich.console import Console
from rich.text import Text

_SEQUENCE = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])|\x9b[0-?]*[ -/]*[@-~]"
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
_UNFIT = re.compile(f"{_SEQUENCE}|{_CONTROL}")
_RAW = re.compile(r"[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def stdout() -> Console:
    """Where answers go."""
    return Console(markup=False, highlight=False, emoji=False)


def stderr() -> Console:
    """Where everything goes that is not the answer."""
    return Console(stderr=True, markup=False, highlight=False, emoji=False)


def clean(text: str) -> str:
    """`text` without what could move the cursor, change colours or reorder letters; lines and tabs stay."""
    return _UNFIT.sub("", text)


def one_line(text: str) -> str:
    """`text`, clean, on one line."""
    return " ".join(clean(text).split())


def write_json(json: str) -> None:
    """Print JSON text; control characters that JSON leaves alone become escapes, so that its meaning stays."""
    sys.stdout.write(_RAW.sub(lambda found: f"\\u{ord(found[0]):04x}", json) + "\n")


def note(console: Console, text: str, style: str = "dim") -> None:
    """A remark: wrapped in a terminal, and a single line in a log."""
    console.print(Text(text, style=style), soft_wrap=not console.is_terminal)


def fail(message: str) -> None:
    """The one line that says what went wrong."""
    console = stderr()
    line = Text.assemble(("error: ", "bold red"), one_line(message))
    console.print(line, soft_wrap=not console.is_terminal)
