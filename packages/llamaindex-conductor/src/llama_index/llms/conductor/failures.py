"""What a LlamaIndex LLM raises leaves as an error of the core, without the keys that vendors quote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from llama_index.core.llms import LLM
from pydantic import SecretStr

from rl_conductor import ConductorError, ModelError
from rl_conductor.models.base import without_secrets

SECRET = re.compile("key|token|secret|password")


@contextmanager
def translated(name: str, llm: LLM) -> Iterator[None]:
    """Never `from` what was raised: its text or request may hold a key."""
    try:
        yield
    except (ConductorError, AssertionError, TimeoutError):
        raise
    except Exception as error:
        said = without_secrets(str(error), _secrets(llm))
        raise ModelError(f"{name} raised {type(error).__name__}: {said}", model=name) from None


def _secrets(llm: LLM) -> Iterator[str]:
    for name, value in llm:
        if isinstance(value, SecretStr):
            yield value.get_secret_value()
        elif isinstance(value, str) and SECRET.search(name):
            yield value
