"""Importing the package is cheap and loads no optional library."""

from __future__ import annotations

import subprocess
import sys

import pytest

import langchain_conductor

LOADED = "import sys; from langchain_conductor import ChatConductor; print(*sys.modules)"


@pytest.fixture(scope="module")
def loaded() -> list[str]:
    """The modules of a fresh process that uses the chat model."""
    return subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True).stdout.split()


def test_each_public_name_is_there() -> None:
    for name in langchain_conductor.__all__:
        assert getattr(langchain_conductor, name).__name__ == name


@pytest.mark.parametrize("library", ["langgraph", "langchain", "openai", "anthropic", "google.auth", "numpy"])
def test_the_chat_model_needs_only_the_core_of_langchain(library: str, loaded: list[str]) -> None:
    assert library not in loaded


def test_the_package_alone_loads_nothing_of_langchain() -> None:
    alone = "import sys, langchain_conductor; assert 'langchain_core' not in sys.modules"
    subprocess.run([sys.executable, "-c", alone], check=True)
