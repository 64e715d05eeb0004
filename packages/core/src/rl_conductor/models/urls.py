"""URLs of servers: whether one is valid, the secrets in it, and its form without them. Pure."""

from __future__ import annotations

import re
from base64 import b64encode
from urllib.parse import unquote, urlsplit

_SECRET_PARAMETER = re.compile("auth|code|key|pass|secret|sig|token", re.IGNORECASE)
"""Names of parameters of a URL that hold a key."""
_USER_INFO = re.compile(r"^(\w+://)?.*@", re.DOTALL)


def redact_url(url: str) -> str:
    """Removes user name, password, query and fragment from `url`, so that it can be printed."""
    return re.split("[?#]", _USER_INFO.sub(r"\1", url))[0]


def url_secrets(url: str) -> tuple[str, ...]:
    """Returns the secrets in `url`: its password, also as it is sent in a header, and keys in its query."""
    parts = urlsplit(url)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    secrets = [password, parts.password, b64encode(f"{user}:{password}".encode()).decode()] if password else []
    for name, _, value in (parameter.partition("=") for parameter in parts.query.split("&")):
        if _SECRET_PARAMETER.search(name):
            secrets += (value, unquote(value))
    return tuple(dict.fromkeys(secret for secret in secrets if secret))


def is_http_url(text: str) -> bool:
    """Returns whether `text` is an address that begins with `http://` or `https://`."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an incomplete IPv6 address, or a port that is not a number
        return False
