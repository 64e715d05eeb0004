"""Errors of vendors' APIs by their HTTP status, and the time to wait that they name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from rl_conductor.errors import (
    AuthenticationError,
    BadRequestError,
    ContextLengthError,
    ModelError,
    ModelTimeoutError,
    OverloadedError,
    RateLimitError,
)
from rl_conductor.models.vendor_errors import parse_retry_after, quote_body, status_error


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, BadRequestError, False),
        (401, AuthenticationError, False),
        (403, AuthenticationError, False),
        (404, BadRequestError, False),
        (408, ModelTimeoutError, True),
        (413, ContextLengthError, False),
        (429, RateLimitError, True),
        (500, ModelError, True),
        (503, ModelError, True),
        (504, ModelTimeoutError, True),
        (529, OverloadedError, True),
    ],
)
def test_a_status_means_an_error(status: int, kind: type[ModelError], retryable: bool) -> None:
    error = status_error("why", model="m", status=status, retry_after=3)
    assert type(error) is kind
    assert (error.status, error.retryable, str(error)) == (status, retryable, "why")
    assert error.retry_after == 3 or not retryable


def test_when_to_try_again_is_a_number_or_a_date() -> None:
    assert parse_retry_after("7") == 7
    assert parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0

    in_an_hour = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    assert parse_retry_after(in_an_hour) == pytest.approx(3_600, abs=60)

    in_two_days_of_some_zone = format_datetime(datetime.now() + timedelta(days=2))
    assert parse_retry_after(in_two_days_of_some_zone) == pytest.approx(2 * 86_400, abs=86_400)


@pytest.mark.parametrize(
    "header", [None, "", "soon", "-1", "Wed, 99 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 99999999999 07:28:00 GMT"]
)
def test_what_is_no_time_to_try_again_is_none(header: str | None) -> None:
    assert parse_retry_after(header) is None


@pytest.mark.parametrize(
    ("body", "quoted"),
    [
        ("no such model", "no such model"),
        ("x <html>", "x <html>"),
        (
            "\n<!DOCTYPE HTML>\n<html><head><title>\n502 Bad\nGateway</title></head><body>nginx</body></html>",
            "HTTP status 502, with a web page in place of a reply: 502 Bad Gateway",
        ),
        ("<html><body>Oh no</body></html>", "HTTP status 502, with a web page in place of a reply"),
    ],
)
def test_of_a_web_page_in_an_error_the_title_is_quoted(body: str, quoted: str) -> None:
    assert quote_body(body, 502) == quoted
