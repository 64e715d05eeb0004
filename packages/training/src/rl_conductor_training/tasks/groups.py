"""Groups of similar questions, whose results are not independent: those of one template, source or contrast set."""

from __future__ import annotations

import re

from rl_conductor.scoring import Sample

_QUOTE = re.compile(r"\"[^\"]*\"|“[^”]*”|'[^']*'(?!\w)")
_NUMBER = re.compile(r"\d[\d.,:]*")
_NAME = re.compile(r"(?<=[a-z,;] )[A-Z][\w'-]*(?: [A-Z][\w'-]*)*")


def group_of(sample: Sample) -> str:
    """Returns the sample's own group or contrast set, else the template of its question."""
    return str(sample.details.get("group") or sample.contrast or template(sample.question))


def template(question: str) -> str:
    """Masks quotes, numbers and names of a question, so that questions of one template become equal."""
    masked = _NAME.sub("<name>", _NUMBER.sub("<number>", _QUOTE.sub("<quote>", question)))
    return " ".join(masked.lower().split())
