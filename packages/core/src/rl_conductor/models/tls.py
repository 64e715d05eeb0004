"""TLS contexts that all clients of a process share, because reading the root certificates takes 20 ms."""

from __future__ import annotations

import os
import ssl
from functools import cache
from types import ModuleType


def tls_context(library: ModuleType) -> ssl.SSLContext:
    """Returns the default context of httpx or httpx2 for the certificates that the environment names."""
    return _create(library, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@cache
def _create(library: ModuleType, _file: str | None, _folder: str | None) -> ssl.SSLContext:
    context: ssl.SSLContext = library.create_ssl_context()
    return context
