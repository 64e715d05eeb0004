"""Templates become pages.

What is shown was said by models and strangers: all of it is escaped, and no page may run or load anything but our own
files.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

from rl_conductor._internal import formatting
from rl_conductor_server.web.replays import is_replayable

SECURITY = {
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


class Page(HTMLResponse):
    """A template with what it shows."""

    def __init__(
        self,
        template: str,
        *,
        status: int = 200,
        headers: dict[str, str] | None = None,
        guarded: bool = False,
        **shown: Any,
    ) -> None:
        """Whoever sees a `guarded` page has shown a key, and can sign out."""
        text = _environment.get_template(template).render(shown, guarded=guarded)
        super().__init__(text, status_code=status, headers=SECURITY | (headers or {}))


def moment(seconds: float) -> str:
    """A time, to the second, by UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%d %b %Y, %H:%M:%S UTC")


def machine_time(seconds: float) -> str:
    """The same for machines."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def day(seconds: float, hours: bool = False) -> str:
    """A day by UTC, or an hour of it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%d %b, %H:%M" if hours else "%d %b %Y")


def usd(amount: float) -> str:
    """US dollars of a scale."""
    return formatting.dollars(Decimal(str(amount)))


def number(amount: int) -> str:
    """With its thousands apart."""
    return f"{amount:,}"


def percent(share: float) -> str:
    """A share of 1, rounded."""
    return f"{share:.0%}"


def _made() -> Environment:
    made = Environment(
        loader=PackageLoader("rl_conductor_server.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    told = (
        formatting.cost,
        formatting.dollars,
        formatting.seconds,
        formatting.counted,
        moment,
        machine_time,
        day,
        usd,
        number,
        percent,
    )
    made.filters |= {filter_.__name__: filter_ for filter_ in told}
    made.globals["replayable"] = is_replayable
    return made


_environment = _made()
