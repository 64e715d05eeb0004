"""Text embeddings with the weights in the wordllama package: no download, no torch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def embed(texts: Sequence[str]) -> Floats:
    """Embeds each text as a row of norm 1, or of zeros if no word is in the vocabulary."""
    vectors: Floats = np.asarray(_model().embed(list(texts)), dtype=float)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1.0)


@contextmanager
def _unchanged_logging() -> Iterator[None]:
    """Undoes changes of the root logger: importing wordllama would print every HTTP request of the program."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@cache
def _model() -> Any:
    with _unchanged_logging():
        import wordllama  # noqa: PLC0415
    # The wheel contains both weights and tokenizer, which the loader looks for in one folder.
    return wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
