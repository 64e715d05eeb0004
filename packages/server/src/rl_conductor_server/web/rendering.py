"""Renders templates as pages.

The pages show text of models and strangers: all of it is escaped, and the Content-Security-Policy lets a page load and
run only our own files.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

from rl_conductor._internal import formatting
from rl_conductor.replay import is_changeable
from rl_conductor_server.service import Service
from rl_conductor_server.store import RunRow
from rl_conductor_server.web.markdown import render_markdown

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Visitor:
    """An administrator, or a reader of the runs of one API key."""

    service: Service
    can_sign_out: bool
    name: str | None = None
    """The email of a visitor who signed in at the provider."""
    key: str | None = None
    """The only API key whose runs a reader may see; `None` for administrators."""

    @property
    def is_admin(self) -> bool:
        return self.key is None


class Page(HTMLResponse):
    """A rendered template, for a visitor if somebody signed in."""

    def __init__(
        self,
        template: str,
        *,
        status: int = 200,
        headers: dict[str, str] | None = None,
        visitor: Visitor | None = None,
        **variables: Any,
    ) -> None:
        text = _environment.get_template(template).render(variables, visitor=visitor)
        super().__init__(text, status_code=status, headers=SECURITY_HEADERS | (headers or {}))


def utc_time(timestamp: float) -> str:
    """Formats seconds since 1970 as a UTC date and time."""
    return datetime.fromtimestamp(timestamp, UTC).strftime("%d %b %Y, %H:%M:%S UTC")


def iso_time(timestamp: float) -> str:
    """Formats seconds since 1970 in ISO 8601."""
    return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="seconds")


def utc_day(timestamp: float, with_hour: bool = False) -> str:
    """Formats seconds since 1970 as a UTC day, or as a day and hour."""
    return datetime.fromtimestamp(timestamp, UTC).strftime("%d %b, %H:%M" if with_hour else "%d %b %Y")


def usd(amount: float) -> str:
    """Formats US dollars given as a float, such as an axis label."""
    return formatting.dollars(Decimal(str(amount)))


def number(amount: int) -> str:
    """Formats an integer with thousands separators."""
    return f"{amount:,}"


def elapsed(row: RunRow) -> int:
    """Returns the whole seconds since a run began."""
    return max(0, round(time.time() - row.created))


def clock(total: int) -> str:
    """Formats whole seconds as a running clock, such as `1:05`."""
    return f"{total // 60}:{total % 60:02}"


def percent(share: float) -> str:
    """Formats a fraction as a rounded percentage."""
    return f"{share:.0%}"


def sentence(text: object) -> str:
    """Formats an error message as a sentence: capitalized, with a full stop."""
    message = str(text).strip()
    return message[:1].upper() + message[1:] + ("" if message.endswith((".", "!", "?")) else ".")


FILTERS = (
    render_markdown,
    formatting.cost,
    formatting.dollars,
    formatting.seconds,
    formatting.counted,
    utc_time,
    iso_time,
    utc_day,
    usd,
    number,
    percent,
    elapsed,
    clock,
    sentence,
)


def _create_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("rl_conductor_server.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {filter_.__name__: filter_ for filter_ in FILTERS}
    environment.globals["replayable"] = is_changeable
    return environment


_environment = _create_environment()
