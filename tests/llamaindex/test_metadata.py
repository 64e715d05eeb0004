"""The package's metadata for LlamaHub."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

from llama_index.core.llms import LLM

PACKAGE = Path(__file__).parents[2] / "packages/llamaindex-conductor"


def test_the_llamahub_metadata_is_true() -> None:
    metadata = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["tool"]["llamahub"]
    module = import_module(metadata["import_path"])
    classes = [
        name for name in module.__all__ if isinstance(value := getattr(module, name), type) and issubclass(value, LLM)
    ]
    assert sorted(metadata["class_authors"]) == classes
    assert metadata["contains_example"] == any(PACKAGE.glob("examples/*"))
