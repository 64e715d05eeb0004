"""What LlamaIndex raises leaves as an error of the core, without the keys that vendors quote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rl_conductor import ConductorError, ModelError
from rl_conductor._internal.blocking import exclude_running_loop, is_loop_error
from rl_conductor.models.redaction import find_secrets, redact_secrets


@contextmanager
def translated(name: str, asked: object) -> Iterator[None]:
    """What `asked`, an LLM or an engine, raises leaves as ours. Never `from` it: its text or request may hold a key."""
    try:
        yield
    except (ConductorError, AssertionError, TimeoutError):
        raise
    except Exception as error:
        said = redact_secrets(str(error), find_secrets(asked))
        wrong_loop = is_loop_error(error)
        if wrong_loop:
            exclude_running_loop()
        raise ModelError(f"{name} raised {type(error).__name__}: {said}", model=name, retryable=wrong_loop) from None
