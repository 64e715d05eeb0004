"""Redacts API keys from error messages, and finds the keys that an object graph holds."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from types import FunctionType
from typing import Any

from pydantic import SecretStr

from rl_conductor.errors import ModelError
from rl_conductor.models.object_parts import global_variables, parts_of
from rl_conductor.models.urls import is_http_url, url_secrets
from rl_conductor.models.vendor_errors import MAX_ERROR_LENGTH

REDACTED = "[secret]"
MIN_MATCH = 8
"""Minimum length of a fragment of a key that is redacted. Shorter secrets are taken for placeholders."""
MAX_SEARCHED_CHARS = 10 * MAX_ERROR_LENGTH
"""Maximum length of an error that is searched; other libraries quote whole replies."""
SECRET_HEADERS = ("authorization", "api-key", "x-api-key", "x-goog-api-key", "x-amz-security-token")
"""Headers in which vendors expect credentials."""

_CREDENTIAL = re.compile(r"(?:Bearer |Credential=|Signature=)([^/,\s]+)")
"""A bearer token, or the access key and the signature of AWS's Signature Version 4."""
_KEY_KINDS = "access|account|api|app|auth|private|secret|subscription"
_SECRET_NAME = re.compile(rf"({_KEY_KINDS})[-_]?key|secret|password|authorization|(^|_)token$", re.IGNORECASE)
"""Names of fields and headers that hold a key. A plain `key` is left out, because mappings often use it."""
_LAST_WORDS = "key|pass|passwd|passphrase|pwd|pat|credentials?|auth|bearer|jwt|cookie"
_SECRET_VARIABLE = re.compile(
    rf"(?:token|secret|password|authorization|(?:{_KEY_KINDS})[-_]?key|(?:^|[_.-])(?:{_LAST_WORDS}))[_-]?\d*$",
    re.IGNORECASE,
)
_WORKING_DIRECTORIES = ("PWD", "OLDPWD")
"""Variables of the shell, not passwords."""
_TOKEN = re.compile(r"[\w*.…•-]+")
_MASK = re.compile(r"[*•]{2,}|\.{3,}|…")


@contextmanager
def redacting(*secrets: str | None) -> Iterator[None]:
    """Redacts these secrets from any `ModelError` raised in the block. Vendors quote keys whole, in part or masked.

    The credentials of the request that failed are redacted, too: a cloud's identity may have added them.
    """
    try:
        yield
    except ModelError as error:
        error.args = (redact_secrets(str(error), (*secrets, *_sent_secrets(error.__context__))),)
        if error.__suppress_context__:  # error trackers may read it all the same
            error.__context__ = None
        raise


def _sent_secrets(error: BaseException | None) -> Iterator[str]:
    """Yields the credentials in the headers of the request that an SDK's or httpx's error is about."""
    with suppress(AttributeError, RuntimeError):  # not every error has a request, and httpx raises without one
        source: Any = getattr(error, "response", None) or error
        for name, value in source.request.headers.items():
            if name.lower() in SECRET_HEADERS:
                yield from _CREDENTIAL.findall(value) or (value,)


# ------------------------------------------------------------------------------------- redacting


def redact_secrets(text: str, secrets: Iterable[str | None]) -> str:
    """Replaces each of `secrets` in `text`, and masked forms and fragments of them."""
    searched = [secret for secret in secrets if secret and len(secret) >= MIN_MATCH]  # shorter ones are placeholders
    for secret in searched:
        if _MASK.search(text):
            text = _TOKEN.sub(partial(_redact_masked, secret), text)
    return _redact_fragments(text, searched)


def _redact_masked(secret: str, token: re.Match[str]) -> str:
    return REDACTED if _is_masked(token[0], secret) else token[0]


def _redact_fragments(text: str, secrets: Iterable[str]) -> str:
    """Replaces all fragments of `secrets` of at least `MIN_MATCH` characters; those that overlap become one."""
    fragments = {secret[i : i + MIN_MATCH] for secret in secrets for i in range(len(secret) - MIN_MATCH + 1)}
    if not any(fragment in text for fragment in fragments):
        return text
    starts = (i for i in range(len(text) - MIN_MATCH + 1) if text[i : i + MIN_MATCH] in fragments)
    hidden = {i for start in starts for i in range(start, start + MIN_MATCH)}
    groups = groupby(enumerate(text), key=lambda item: item[0] in hidden)
    return "".join(REDACTED if is_hidden else "".join(char for _, char in group) for is_hidden, group in groups)


def _is_masked(token: str, secret: str) -> bool:
    """Returns whether `token` is the start or the end of `secret` next to a mask such as `****`."""
    if _MASK.search(token) is None:
        return False
    ends = (end for part in _MASK.split(token) if len(end := part.strip(".")) >= 3)
    return any(secret.startswith(end) or secret.endswith(end) for end in ends)


# --------------------------------------------------------------------------------------- finding


def is_secret_name(name: str) -> bool:
    """Returns whether a field or a header of this name holds a key."""
    return _SECRET_NAME.search(name) is not None


def is_secret_variable(name: str) -> bool:
    """Returns whether an environment variable holds a secret, such as `REPORTS_KEY`; `KEY_FILE` only says where."""
    return name not in _WORKING_DIRECTORIES and _SECRET_VARIABLE.search(name) is not None


def find_secrets(root: object) -> set[str]:
    """Returns the secrets reachable from an object.

    These are pydantic secrets, strings under a name such as `api_key`, and the passwords and keys in URLs, also in
    global variables that functions use.
    """
    secrets: set[str] = set()
    for name, part in parts_of(root):
        variables = global_variables(part) if isinstance(part, FunctionType) else ()
        for field, value in ((name, part), *variables):
            secrets.update(_secrets_in(field, value))
    return secrets - {""}


def _secrets_in(name: str, value: object) -> tuple[str, ...]:
    """Returns the secrets that a field or a variable holds."""
    if isinstance(value, SecretStr):
        return (value.get_secret_value(),)
    if not isinstance(value, str):
        return ()
    if is_secret_name(name):
        return (value,)
    return url_secrets(value) if is_http_url(value) else ()


def environment_secrets() -> set[str]:
    """Returns the secrets in environment variables, which functions may read at any time."""
    return {value for name, value in os.environ.items() if is_secret_variable(name)}


def redacted_repr(value: object) -> str:
    """Returns the `repr` of an object of a user, for an error, without the keys in it, which some libraries show."""
    return redact_secrets(repr(value)[:MAX_SEARCHED_CHARS], find_secrets(value))[:MAX_ERROR_LENGTH]


def redacted_text(error: object, source: object) -> str:
    """Returns the text of an error without the keys in `source` and in the environment.

    It has at most `MAX_ERROR_LENGTH` characters.
    """
    text = str(error)[:MAX_SEARCHED_CHARS]
    return redact_secrets(text, find_secrets(source) | environment_secrets())[:MAX_ERROR_LENGTH]
