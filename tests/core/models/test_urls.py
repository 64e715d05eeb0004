from __future__ import annotations

from base64 import b64encode

import pytest

from rl_conductor.models.urls import redact_url, url_secrets


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("https://h/mcp?page=2", ()),
        ("https://h/mcp?page=2&tavilyApiKey=tvly-1%2F2&token=", ("tvly-1%2F2", "tvly-1/2")),
        ("https://me@h/mcp", ()),
        ("https://me:a%20b@h/mcp", ("a b", "a%20b", b64encode(b"me:a b").decode())),
    ],
)
def test_secrets_in_an_address_are_found_in_each_form_in_which_they_are_sent(
    url: str, secrets: tuple[str, ...]
) -> None:
    assert url_secrets(url) == secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://localhost:8000/v1", "http://localhost:8000/v1"),
        ("https://me:pass-word@h:1/v1", "https://h:1/v1"),
        ("https://me:pa@ss/wo?rd@h/v1", "https://h/v1"),
        ("me:pass-word@h:8000/v1", "h:8000/v1"),
        ("https://h/v1?key=secret#secret", "https://h/v1"),
        ("nonsense", "nonsense"),
    ],
)
def test_an_address_is_shown_without_what_may_be_secret(url: str, shown: str) -> None:
    assert redact_url(url) == shown
