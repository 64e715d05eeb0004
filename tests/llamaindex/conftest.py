"""Indexes over the corpus, made once: embedding is quick, importing the embedding is not."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_index.core import VectorStoreIndex

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))  # whose documents and embedding are tested with


@pytest.fixture(scope="session", autouse=True)
def loop_of_the_main_thread() -> Iterator[None]:
    """LlamaIndex's sync half takes the main thread's event loop, and leaves one open where there is none."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()


@pytest.fixture(scope="session")
def indexes() -> dict[str, VectorStoreIndex]:
    """One index a silo, and `all`."""
    from llamaindex_corpus import index_of  # noqa: PLC0415  (found only since the line above)

    silos = {silo: index_of(silo) for silo in ("hr", "engineering", "sales")}
    return silos | {"all": index_of()}
