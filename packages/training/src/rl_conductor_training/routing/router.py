"""Trains the router of single calls on labelled requests, and evaluates it by cross-validation.

Every reported number is out of sample: each request is classified by a model that was not trained on it, and the error
rate comes from nested cross-validation, where the threshold was not chosen on the request either.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import ceil

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import expit

from rl_conductor.errors import ConfigError
from rl_conductor.planning.routing.router import Learned, Router, request_features
from rl_conductor.text.features import BUCKETS, length_feature, word_features
from rl_conductor.types import Value
from rl_conductor_training.routing.logistic_regression import DIGITS, build_regression, sparse_rows
from rl_conductor_training.routing.router_examples import RouterExample
from rl_conductor_training.statistics import Estimate, Floats, estimate

FOLDS = 5
MIN_REQUESTS = 60
"""Minimum number of different requests."""
MIN_PER_CLASS = 15
"""Minimum number of right and of wrong requests."""
MIN_SEEN = 20
"""Minimum number of requests with a feature, such as tools, before the router handles it."""
LENGTH_MARGIN = 2
"""The router handles messages up to this many times the longest training message."""
CALIBRATION_BINS = 5
EVEN_ODDS = 0.5

Flags = NDArray[np.bool_]


class CalibrationBin(Value):
    """Requests of similar predicted probability."""

    predicted: float
    """Mean predicted probability."""
    right: Estimate
    """Share that was right."""


class RouterReport(Value):
    """Out-of-sample quality of a router."""

    worker: str
    right: Estimate
    """Share of all requests that one call answers."""
    accuracy: Estimate
    """Accuracy of the classifier at a threshold of 0.5."""
    brier: float
    """Brier score: mean squared error of the probabilities."""
    brier_baseline: float
    """Brier score of predicting the overall share for every request."""
    bins: tuple[CalibrationBin, ...]
    threshold: float | None
    """Minimum probability at which one call is made; `None` if none keeps the risk."""
    sent: Estimate
    """Share of the requests that are sent to one call."""
    wrong: Estimate | None
    """Share of wrong answers among those; `None` if nothing is sent."""


# ---------------------------------------------------------------------------------------- training


def train_router(
    examples: Sequence[RouterExample], *, worker: str, model: str, risk: float, source: str
) -> tuple[Router | None, RouterReport]:
    """Trains a router and evaluates it; it is `None` if no share of the requests can be sent at that risk.

    Args:
        examples: labelled requests.
        worker: the worker that was called.
        model: its model, as `provider:name`.
        risk: maximum share of wrong answers among the requests sent to one call.
        source: description of where the examples come from.

    Raises:
        ConfigError: there are too few examples; the message says how many are needed.
    """
    examples = _deduplicate(examples)
    _check_size(examples, worker, risk)
    features, right = _features(examples), np.array([example.right for example in examples])
    folds = np.array([_fold(example) for example in examples])
    probabilities = _cross_validate(features, right, folds)
    threshold = select_threshold(probabilities, right, risk)
    report = _report(worker, probabilities, right, threshold, _cross_validate_sent(features, right, folds, risk))
    if threshold is None:
        return None, report
    learned = Learned(
        source=source,
        requests=len(examples),
        right=int(right.sum()),
        risk=risk,
        trained_on=f"{datetime.now(UTC):%Y-%m-%d}",
    )
    weights = _fit(features, right)
    return _router(weights, examples, worker=worker, model=model, threshold=threshold, learned=learned), report


def select_threshold(probabilities: Floats, right: Flags, risk: float) -> float | None:
    """Returns the lowest threshold with an error rate of at most `risk`, or `None`.

    It is never below 0.5: a request that is more likely wrong than right is not sent, however much risk is left. One
    error is added to the observed ones, because the best of many thresholds looks better than it is; in simulations
    with 100 to 1,000 requests the error rate then stays, on average, below the risk.
    """
    order = np.argsort(-probabilities, kind="stable")[: int((probabilities >= EVEN_ODDS).sum())]
    values, errors = probabilities[order], np.cumsum(~right[order])
    is_valid = (errors + 1) / (np.arange(len(order)) + 2) <= risk
    is_valid &= np.append(values[1:] != values[:-1], np.ones(min(len(order), 1), dtype=bool))  # keeps ties together
    if not is_valid.any():
        return None
    last = int(np.flatnonzero(is_valid)[-1])
    return EVEN_ODDS if last == len(order) - 1 else float(values[last])


def _deduplicate(examples: Iterable[RouterExample]) -> list[RouterExample]:
    """Keeps each request once, so that repeated ones do not dominate; it is right if it always was."""
    unique: dict[tuple[str, frozenset[str]], RouterExample] = {}
    for example in examples:
        key = example.message, request_features(example.request)
        unique[key] = replace(example, right=example.right and unique.get(key, example).right)
    return list(unique.values())


def _check_size(examples: Sequence[RouterExample], worker: str, risk: float) -> None:
    right = sum(example.right for example in examples)
    wrong = len(examples) - right
    min_right = max(MIN_PER_CLASS, ceil(1 / risk))
    if len(examples) >= MIN_REQUESTS and right >= min_right and wrong >= MIN_PER_CLASS:
        return
    message = (
        f"too little to train a router on: {len(examples)} different requests, of which {worker!r} alone answers "
        f"{right} right and {wrong} wrong; at least {MIN_REQUESTS} are needed, {min_right} of them right and "
        f"{MIN_PER_CLASS} wrong"
    )
    if len(examples) >= MIN_REQUESTS and wrong < MIN_PER_CLASS:
        message += f"; as it is, policy.single = {worker!r} may do without a router"
    raise ConfigError(message)


def _features(examples: Sequence[RouterExample]) -> csr_array:
    """Builds a sparse row per example: hashed words, other content of the request, and the message's length."""
    kinds = _kinds(examples)
    width = BUCKETS + len(kinds) + 1
    rows = [
        word_features(example.message)
        | {BUCKETS + kinds.index(name): 1.0 for name in request_features(example.request)}
        | {width - 1: length_feature(example.message)}
        for example in examples
    ]
    return sparse_rows(rows, width)


def _kinds(examples: Iterable[RouterExample]) -> list[str]:
    return sorted({name for example in examples for name in request_features(example.request)})


def _fit(features: csr_array, right: Flags) -> Floats:
    """Returns the weights of a logistic regression with an L2 penalty, the bias last."""
    if right.all() or not right.any():  # a fold without the other class; scikit-learn requires both
        return np.append(np.zeros(features.shape[1]), np.inf if right.all() else -np.inf)
    classifier = build_regression()
    classifier.fit(features, right)
    return np.append(classifier.coef_[0], classifier.intercept_)


def _predict(weights: Floats, features: csr_array) -> Floats:
    probabilities: Floats = expit(features @ weights[:-1] + weights[-1])
    return probabilities


def _fold(example: RouterExample) -> int:
    """Assigns a fold by a hash of the message, so that it is reproducible."""
    return hashlib.sha256(example.message.encode()).digest()[0] % FOLDS


def _cross_validate(features: csr_array, right: Flags, folds: NDArray[np.int64]) -> Floats:
    """Returns the probability of each request, predicted by a model trained on the other folds."""
    probabilities = np.zeros(len(right))
    for fold in np.unique(folds):
        training = folds != fold
        probabilities[~training] = _predict(_fit(features[training], right[training]), features[~training])
    return probabilities


def _cross_validate_sent(features: csr_array, right: Flags, folds: NDArray[np.int64], risk: float) -> Flags:
    """Returns which requests are sent, by a model and a threshold that were both chosen on the other folds."""
    sent = np.zeros(len(right), dtype=bool)
    for fold in np.unique(folds):
        training = folds != fold
        probabilities = _cross_validate(features[training], right[training], folds[training])
        threshold = select_threshold(probabilities, right[training], risk)
        if threshold is not None:
            weights = _fit(features[training], right[training])
            sent[~training] = _predict(weights, features[~training]) >= threshold
    return sent


def _router(
    weights: Floats,
    examples: Sequence[RouterExample],
    *,
    worker: str,
    model: str,
    threshold: float,
    learned: Learned,
) -> Router:
    kinds = _kinds(examples)
    counts = Counter(name for example in examples for name in request_features(example.request))
    rounded = [round(float(weight), DIGITS) for weight in weights]
    return Router(
        worker=worker,
        model=model,
        threshold=threshold,
        max_chars=LENGTH_MARGIN * max(len(example.message) for example in examples),
        trained_features=frozenset(name for name in kinds if counts[name] >= MIN_SEEN),
        bias=rounded[-1],
        length_weight=rounded[-2],
        request_weights=dict(zip(kinds, rounded[BUCKETS:-2], strict=True)),
        word_weights={bucket: weight for bucket, weight in enumerate(rounded[:BUCKETS]) if weight},
        learned=learned,
    )


# ------------------------------------------------------------------------------------------ report


def _report(worker: str, probabilities: Floats, right: Flags, threshold: float | None, sent: Flags) -> RouterReport:
    return RouterReport(
        worker=worker,
        right=_share(right),
        accuracy=_share((probabilities >= EVEN_ODDS) == right),
        brier=float(np.mean((probabilities - right) ** 2)),
        brier_baseline=float(right.mean() * (1 - right.mean())),
        bins=tuple(_calibration_bins(probabilities, right)),
        threshold=threshold,
        sent=_share(sent),
        wrong=_share(~right[sent]) if sent.any() else None,
    )


def _calibration_bins(probabilities: Floats, right: Flags) -> Iterable[CalibrationBin]:
    """Splits the requests into bins of equal size, by probability."""
    for members in np.array_split(np.argsort(probabilities, kind="stable"), CALIBRATION_BINS):
        yield CalibrationBin(predicted=float(probabilities[members].mean()), right=_share(right[members]))


def _share(flags: Flags) -> Estimate:
    return estimate(flags.astype(float).tolist())
