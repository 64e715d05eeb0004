"""Removes secrets in addresses from the logs of HTTP libraries, which quote the address of each request.

Only addresses that contain a secret of one that this package was given: other clients of a program log as before.
"""

from __future__ import annotations

import logging
import re

from rl_conductor.models.urls import redact_url, url_secrets

LOGGERS = ("httpx", "httpx2", "openai._base_client", "anthropic._base_client", "mcp.client.streamable_http")
"""The loggers of libraries that write addresses into their logs."""

_ADDRESS = re.compile(r"https?://[^\s'\"]+")
_secrets: set[str] = set()


def redact_in_logs(url: str) -> None:
    """Leaves user name, password and query out of addresses in logs that contain a secret of `url`."""
    secrets = url_secrets(url)
    if not secrets:
        return
    _secrets.update(secrets)
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_redact_addresses)  # adding it again has no effect


def _redact_addresses(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    redacted = _ADDRESS.sub(_redact_address, message)
    if redacted != message:
        record.msg, record.args = redacted, None
    return True


def _redact_address(address: re.Match[str]) -> str:
    return redact_url(address[0]) if any(secret in address[0] for secret in tuple(_secrets)) else address[0]
