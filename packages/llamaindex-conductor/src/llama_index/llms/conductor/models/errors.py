"""Translates exceptions of LlamaIndex objects into errors of the core, without API keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rl_conductor import ConductorError
from rl_conductor.errors import OutputLimitError
from rl_conductor.integration import host_error

CUT_OFF = "Response was terminated early: MAX_TOKENS"
"""The message of Google's LLM for a reply that reached the maximum of tokens; its text is lost."""


@contextmanager
def translate_errors(name: str, source: object) -> Iterator[None]:
    """Raises exceptions of `source`, an LLM, an engine or an agent, as the core's, called `name` in the message.

    The original exception is not chained, because its text or its HTTP request may contain a key. Errors of a vendor
    are not retried, because the integration has done so.
    """
    try:
        yield
    except (ConductorError, AssertionError):
        raise
    except Exception as error:
        if str(error).startswith(CUT_OFF):
            raise OutputLimitError(f"{name}: the reply was cut off; raise max_tokens", model=name) from None
        model_error = host_error(error, name=name, source=source)
        if not (model_error.min_retries or isinstance(error, TimeoutError)):
            model_error.retryable = False
        raise model_error from None
