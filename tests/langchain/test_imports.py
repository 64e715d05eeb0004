"""What importing the package costs, and what it does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

import langchain_conductor

LOADED = "import sys; from langchain_conductor import ChatConductor; print(*sys.modules)"


def test_each_public_name_is_there() -> None:
    for name in langchain_conductor.__all__:
        assert getattr(langchain_conductor, name).__name__ == name


@pytest.mark.parametrize("library", ["langgraph", "langchain", "openai", "anthropic", "google.genai", "numpy"])
def test_the_chat_model_needs_only_the_core_of_langchain(library: str) -> None:
    found = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert library not in found.stdout.split()
