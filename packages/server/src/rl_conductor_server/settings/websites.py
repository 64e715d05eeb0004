"""Websites that may call the API from a browser."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

from rl_conductor.pool.model_entry import Entry

ORIGIN = re.compile(r"(?!http:.*:80$|https:.*:443$)[a-z][a-z0-9+.-]*://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:\d{1,5})?")
"""The header `Origin` of a website: browsers leave out the port that its scheme implies."""


def _check_origin(text: str) -> str:
    """Rejects `*`, and text that browsers never send as the origin of a website: it would have no effect."""
    if not ORIGIN.fullmatch(text):
        raise ValueError(
            f"{text!r} is no origin; write scheme://host or scheme://host:port as browsers do: in lower case, without "
            "a path, and without the port that the scheme implies, such as 'https://app.example.com'"
        )
    return text


Origin = Annotated[str, AfterValidator(_check_origin)]


class WebEntry(Entry):
    """Websites with pages that may call the API: `[web]`."""

    origins: tuple[Origin, ...] = ()
    """Their origins, such as `https://app.example.com`; by default no website may."""
