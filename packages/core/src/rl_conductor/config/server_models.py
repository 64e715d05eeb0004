"""Lists the models of a server with OpenAI's protocol."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from rl_conductor.errors import ConfigError
from rl_conductor.models.urls import redact_url

if TYPE_CHECKING:
    from http.client import HTTPResponse

PROBE_SECONDS = 0.5
"""Timeout of the request to a server that may be on this machine."""
REMOTE_SECONDS = 10.0
"""Timeout of the request to a server that the user named, which may be far away."""
MAX_LIST_BYTES = 4 * 2**20
"""Maximum size of a list of models; on a port of this machine may be something else that never ends its reply."""


def list_server_models(address: str) -> list[str]:
    """Returns the names of the models that a server lists; empty if it does not respond or has another API."""
    try:
        return read_server_models(address, timeout=PROBE_SECONDS)
    except ConfigError:
        return []


def read_server_models(address: str, *, key: str | None = None, timeout: float = REMOTE_SECONDS) -> list[str]:
    """Returns the names of the models that a server lists.

    Raises:
        ConfigError: the server can't be reached, rejects the request, or lists no models; the message says which.
    """
    # Imported here because few callers need them and they take a tenth of this package's import time.
    from http.client import HTTPException  # noqa: PLC0415
    from urllib.error import HTTPError, URLError  # noqa: PLC0415

    try:
        names = _names(_fetch_in_thread(address, key, timeout))
    except HTTPError as error:
        raise ConfigError(f"it answered with status {error.code}; {_about_status(error.code)}") from None
    except TimeoutError:
        raise ConfigError(f"it did not answer within {timeout:g} seconds; start the server") from None
    except OSError as error:
        cause = error.reason if isinstance(error, URLError) else error
        raise ConfigError(f"it can't be reached ({cause}); start the server") from None
    except (HTTPException, ValueError):  # their texts may contain a password of the address
        raise ConfigError("there is no HTTP; write an address such as 'http://localhost:8000/v1'") from None
    if not names:
        raise ConfigError("its answer lists no models; an address often ends in '/v1'")
    return names


def _fetch_in_thread(address: str, key: str | None, timeout: float) -> bytes:
    """Requests the list in a thread, as `urlopen` limits only the time between two pieces of a reply and its headers.

    Raises:
        TimeoutError: it is not complete within `timeout` seconds.
    """
    body: Future[bytes] = Future()
    Thread(target=_fetch_into, args=(body, address, key, timeout), daemon=True).start()
    try:
        return body.result(timeout)
    finally:
        del body  # an error in it refers to this frame, and would keep its sockets open


def _fetch_into(body: Future[bytes], address: str, key: str | None, timeout: float) -> None:
    try:
        body.set_result(_fetch(address, key, timeout))
    except Exception as error:  # for the thread that waits for the body
        body.set_exception(error)
        del body


def _fetch(address: str, key: str | None, timeout: float) -> bytes:
    """Requests the list, with the user name and the password of the address in place of the key if it has them."""
    from urllib.request import Request, urlopen  # noqa: PLC0415  slow to import

    parts = urlsplit(address)
    request = Request(f"{redact_url(address).rstrip('/')}/models")  # noqa: S310
    if parts.password:
        user = f"{unquote(parts.username or '')}:{unquote(parts.password)}"
        request.add_unredirected_header("Authorization", f"Basic {b64encode(user.encode()).decode()}")
    elif key:
        request.add_unredirected_header("Authorization", f"Bearer {key}")
    with urlopen(request, timeout=timeout) as response:  # noqa: S310
        return _read(response, timeout)


def _read(response: HTTPResponse, timeout: float) -> bytes:
    """Reads the body, of which `urlopen` limits only the time between two pieces. Raises `TimeoutError`."""
    deadline = time.monotonic() + timeout
    body = b""
    while len(body) <= MAX_LIST_BYTES and (piece := response.read1()):
        body += piece
        if time.monotonic() > deadline:
            raise TimeoutError
    return body


def _names(body: bytes) -> list[str]:
    """Reads the names from a reply, without those that no worker can have; empty if it is something else."""
    try:
        names = dict.fromkeys(entry["id"] for entry in json.loads(body)["data"])
        return [name for name in names if isinstance(name, str) and name.strip() and name.isprintable()]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def _about_status(status: int) -> str:
    """Returns the advice for an error with this status."""
    if status in (401, 403):
        return "set OPENAI_API_KEY to a key of this server"
    return "an address often ends in '/v1'" if status == 404 else "try again later"
