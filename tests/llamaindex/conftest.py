"""Indexes over the corpus. They are session fixtures because importing the embedding model is slow."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_index.core import VectorStoreIndex

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))  # for the documents and the embedding model


@pytest.fixture(scope="session", autouse=True)
def event_loop_of_main_thread() -> Iterator[None]:
    """Sets an event loop, because LlamaIndex's sync methods would create one and leave it open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()


@pytest.fixture(scope="session")
def indexes() -> dict[str, VectorStoreIndex]:
    """Returns an index per silo, and one of all documents named `all`."""
    from llamaindex_corpus import index_of  # noqa: PLC0415  (importable only after the line above)

    silos = {silo: index_of(silo) for silo in ("hr", "engineering", "sales")}
    return silos | {"all": index_of()}
