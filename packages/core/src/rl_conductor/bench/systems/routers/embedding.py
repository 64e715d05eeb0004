"""Texts as vectors, by weights that come with a package: no download, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import wordllama
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def embedded(texts: Sequence[str]) -> Floats:
    """A row of length 1 for each text; zeros for a text without any known word."""
    vectors: Floats = np.asarray(_model().embed(list(texts)), dtype=float)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)


@cache
def _model() -> Any:
    # Its loader looks for the tokenizer beside the weights, where the wheel has put both.
    return wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
