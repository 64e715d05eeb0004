"""Text embeddings with the weights in the wordllama package: no download, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import wordllama
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def embed(texts: Sequence[str]) -> Floats:
    """Embeds each text as a row of norm 1, or of zeros if no word is in the vocabulary."""
    vectors: Floats = np.asarray(_model().embed(list(texts)), dtype=float)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1.0)


@cache
def _model() -> Any:
    # The wheel contains both weights and tokenizer, which the loader looks for in one folder.
    return wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
