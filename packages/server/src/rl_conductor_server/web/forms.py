"""Reads submitted forms, from our own pages only: where no key is set, no cookie would tell a cross-site form apart."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends
from starlette.requests import Request

from rl_conductor_server.endpoints.dependencies import ServiceDependency
from rl_conductor_server.errors import ApiError
from rl_conductor_server.transport.body import media_type, read_body

MAX_BYTES = 64 * 2**10
MAX_FIELDS = 16


async def read_form(http: Request, service: ServiceDependency) -> dict[str, str]:
    """Returns the form's fields by name.

    Raises:
        ApiError: the form comes from another site, is not URL-encoded, too large or too slow, or others took its place.
    """
    _check_same_origin(http)
    if media_type(http) != "application/x-www-form-urlencoded":
        raise ApiError("Send the form as application/x-www-form-urlencoded.", status=415, code="no_form")
    async with service.forms.turn():
        body = await read_body(http, max_bytes=MAX_BYTES, seconds=service.settings.intake.client_seconds)
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:
        raise ApiError("The form could not be read.", status=400, code="no_form") from None


Form = Annotated[dict[str, str], Depends(read_form)]


def _check_same_origin(http: Request) -> None:
    """Rejects forms of other sites by `Sec-Fetch-Site`, or by `Origin` in browsers too old to send that."""
    site = http.headers.get("sec-fetch-site")
    origin = http.headers.get("origin", "").partition("://")[2]
    if site != "same-origin" and (site is not None or origin != http.headers.get("host")):
        raise ApiError("This form was sent from another site.", status=403, code="other_site")
