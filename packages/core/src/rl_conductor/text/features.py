"""Features of a text for small linear classifiers: hashed words, word pairs and letter sequences."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import log1p, sqrt

BUCKETS = 4_096
"""Number of hash buckets for words and pairs of words."""
MAX_CHARS = 4_000
"""Characters of a message that are read, which bounds the time of a decision."""
NGRAM = 4
"""Length of the letter sequences, which match words in other forms, such as plurals."""
FEATURES = 2 * BUCKETS
"""Number of features: buckets of words and word pairs, then buckets of letter sequences."""
_WORD = re.compile(r"\w+|[^\w\s]")
_DIGIT = re.compile(r"\d")


def length_feature(message: str) -> float:
    """Returns the length feature: the logarithm of the message length, scaled to the order of 1."""
    return log1p(len(message)) / 8


def word_features(message: str) -> dict[int, float]:
    """Hashes the words and word pairs of a message into a sparse vector of norm 1, as values by bucket."""
    tokens = [_DIGIT.sub("0", word) for word in _WORD.findall(message[:MAX_CHARS].lower())]
    return _hash_terms(dict.fromkeys((*tokens, *map(" ".join, pairwise(tokens)))))


def text_features(message: str) -> dict[int, float]:
    """Hashes the words, word pairs and letter sequences of a message into a sparse vector, as values by bucket."""
    return word_features(message) | {BUCKETS + bucket: value for bucket, value in _ngrams(message).items()}


def dot_product(features: Mapping[int, float], weights: Mapping[int, float]) -> float:
    """Returns the dot product of two sparse vectors."""
    return sum(value * weights.get(bucket, 0.0) for bucket, value in features.items())


def _ngrams(message: str) -> dict[int, float]:
    text = f" {' '.join(_DIGIT.sub('0', message[:MAX_CHARS].lower()).split())} "
    return _hash_terms(sorted({text[start : start + NGRAM] for start in range(len(text) - NGRAM + 1)}))


def _hash_terms(terms: Iterable[str]) -> dict[int, float]:
    """Hashes distinct terms into a sparse vector of norm 1, in their order, because sums of floats depend on it."""
    counts: dict[int, float] = {}
    for term in terms:
        digest = zlib.crc32(term.encode())
        bucket = digest % BUCKETS
        counts[bucket] = counts.get(bucket, 0.0) + (1.0 if digest >> 31 else -1.0)  # random sign: collisions cancel
    norm = sqrt(sum(value * value for value in counts.values()))
    return {bucket: value / norm for bucket, value in counts.items()} if norm else {}
