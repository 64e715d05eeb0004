"""Structured logs: a line for each request and each run, as JSON or text. They contain no secrets and no bodies."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pythonjsonlogger.json import JsonFormatter
from sqlalchemy.exc import SQLAlchemyError

from rl_conductor.models.redaction import REDACTED
from rl_conductor_server.access_errors import KEY_LIKE
from rl_conductor_server.settings import LogEntry
from rl_conductor_server.store import StoreUnavailableError
from rl_conductor_server.store.database import reason_of

log = logging.getLogger("rl_conductor_server")
access_log = logging.getLogger("rl_conductor_server.access")
TEXT_FIELDS = ("run", "key", "administrator", "model", "status", "seconds", "usd", "cause")
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
"""Characters that end lines, control terminals, or change the direction of text."""
PLAIN = re.compile("[!#-<>-~]+")
"""Values that need no quotes in the text format: printable ASCII without blanks, quotes and equals signs."""


_is_private: ContextVar[bool] = ContextVar("conductor_private_log", default=False)


@contextmanager
def leave_out_reasons(*, when: bool) -> Iterator[None]:
    """Leaves the reasons out of the log lines of runs in this block, for requests that are not stored."""
    token = _is_private.set(when)
    try:
        yield
    finally:
        _is_private.reset(token)


def _leave_out_reason(record: logging.LogRecord) -> bool:
    """Replaces the last argument of a warning about a run: the reason, which may quote the conversation."""
    if _is_private.get() and isinstance(record.args, tuple) and record.args:
        record.args = (*record.args[:-1], "(left out, since the request is not stored)")
    return True


def filter_run_log() -> None:
    """Applies `leave_out_reasons` to the log of runs in any configuration; a second call changes nothing."""
    logging.getLogger("rl_conductor.run").addFilter(_leave_out_reason)


def configure_logging(entry: LogEntry) -> None:
    """Sends all logs to stderr, in the format of the settings."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(entry))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)  # its warnings quote headers of any client
    logging.getLogger("rl_conductor").setLevel(logging.INFO)
    logging.getLogger("rl_conductor_server").setLevel(logging.INFO)
    access_log.disabled = not entry.access


def formatter(entry: LogEntry) -> logging.Formatter:
    """Returns the formatter of the settings' format."""
    if entry.format == "text":
        return _TextFormatter("%(asctime)s %(levelname)s %(message)s")
    names = {"levelname": "level", "name": "logger"}
    return _JsonFormatter("{message}{levelname}{name}", style="{", timestamp="time", rename_fields=names)


class _WithoutKeys(logging.Formatter):
    """Redacts text that looks like a key in lines and tracebacks: errors of any library may quote one."""

    def format(self, record: logging.LogRecord) -> str:
        return KEY_LIKE.sub(REDACTED, super().format(record))


class _JsonFormatter(_WithoutKeys, JsonFormatter):
    """A JSON object for each line."""


class _TextFormatter(_WithoutKeys):
    """Appends the fields of a line as `name=value`; text of models and clients can't forge a line or a field."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the base class's name
        fields = ((name, getattr(record, name, None)) for name in TEXT_FIELDS)
        line = _one_line(super().formatMessage(record))
        return " ".join((line, *(f"{name}={_format_value(str(value))}" for name, value in fields if value)))

    def formatException(self, ei: Any) -> str:  # noqa: N802  the base class's name
        """Indents each line, as the message of an exception may look like a line of the log."""
        return "\n".join(f"  {_one_line(line)}" for line in super().formatException(ei).split("\n"))


def _one_line(text: str) -> str:
    return CONTROL.sub(lambda match: _escape(match[0])[1:-1], text)


def _format_value(value: str) -> str:
    """Formats the value of a field, in quotes if it has blanks or the like."""
    return value if PLAIN.fullmatch(value) else _escape(value)


def _escape(text: str) -> str:
    return json.dumps(text).replace("\x7f", "\\u007f")


@contextmanager
def log_failures(work: str) -> Iterator[None]:
    """Logs errors of work that is repeated for ever: the next attempt may succeed.

    Without it, other servers would take over the runs of this one.
    """
    try:
        yield
    except (SQLAlchemyError, StoreUnavailableError) as error:
        log.warning("the store is unavailable: %s", reason_of(error))
    except Exception:
        log.exception("%s failed", work)
