"""Forms that our own pages sent, and nobody else's: where no key is set, no cookie tells the two apart."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends
from starlette.requests import Request

from rl_conductor_server.api.body import collected, media_type
from rl_conductor_server.endpoints.lookups import Shared
from rl_conductor_server.errors import ApiError

MOST_BYTES = 64 * 2**10
MOST_FIELDS = 16


async def form(http: Request, service: Shared) -> dict[str, str]:
    """The fields by name.

    Raises:
        ApiError: it comes from another site, or is no form, too large or too slow.
    """
    _check_same_origin(http)
    if media_type(http) != "application/x-www-form-urlencoded":
        raise ApiError("Send the form as its page does.", status=415, code="no_form")
    body = await collected(http, most=MOST_BYTES, seconds=service.settings.intake.client_seconds)
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:
        raise ApiError("This is no form of ours.", status=400, code="no_form") from None


Form = Annotated[dict[str, str], Depends(form)]


def _check_same_origin(http: Request) -> None:
    """Every browser says where a form comes from, an old one by its origin alone."""
    site = http.headers.get("sec-fetch-site")
    origin = urlsplit(http.headers.get("origin", "")).netloc
    if site != "same-origin" and (site is not None or origin != http.headers.get("host")):
        raise ApiError("This form was not sent by a page of ours.", status=403, code="other_site")
