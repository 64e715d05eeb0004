"""Learns `Tiers` from what one worker alone made of the user's requests, and says how far they may be trusted.

Nothing that is reported was fitted: each request is judged by a classifier that has not seen it, and the share of wrong
answers is that of requests which had no part in the choice of the threshold either.
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
from scipy.optimize import minimize
from scipy.sparse import csr_array
from scipy.special import expit

from rl_conductor.bench.examples import Example
from rl_conductor.bench.statistics import Estimate, Floats, estimate
from rl_conductor.errors import ConfigError
from rl_conductor.tiers import BUCKETS, Learned, Tiers, holds, length, words
from rl_conductor.types import Value

FOLDS = 5
PENALTY = 0.1
"""On the squares of the weights: the best of 0.03 to 1 on 60 to 300 questions of twenty kinds."""
FEWEST = 60
"""Different requests, at least."""
FEWEST_OF_EACH = 15
"""Of them right and wrong, at least: fewer of one kind teach nothing of it."""
ENOUGH_TO_KNOW = 20
"""Requests that hold something, such as tools, before it counts as known."""
LONGER = 2
"""How many times as long as the longest message a message may be that is still judged."""
BINS = 5
EVEN = 0.5
"""Neither right nor wrong is likelier."""
DIGITS = 6

Flags = NDArray[np.bool_]


class Bin(Value):
    """Requests of about the same probability."""

    predicted: float
    """Its mean."""
    right: Estimate


class LearningReport(Value):
    """How well a classifier knows what it has not seen."""

    worker: str
    right: Estimate
    """What one call answers of all."""
    accuracy: Estimate
    """How often the likelier of the two came true."""
    brier: float
    """Mean squared error of the probabilities."""
    brier_of_none: float
    """That of who only knows how many are right in all."""
    bins: tuple[Bin, ...]
    threshold: float | None
    """The least probability at which one call is made; `None` when there is none."""
    sent: Estimate
    """The share that one call would answer."""
    wrong: Estimate | None
    """The share of those that it would answer wrong; `None` when it would get none."""


# ---------------------------------------------------------------------------------------- learning


def learn(
    examples: Sequence[Example], *, worker: str, model: str, risk: float, source: str
) -> tuple[Tiers | None, LearningReport]:
    """A classifier, and how good it is; none when no share of the requests can be sent at that risk.

    Args:
        examples: requests, and what became of them.
        worker: who was asked.
        model: its model, as `provider:name`.
        risk: the share of wrong answers among those of a single call, at most.
        source: where the examples come from, in words.

    Raises:
        ConfigError: they are too few; the message says how many are needed.
    """
    examples = _different(examples)
    _check_enough(examples, worker, risk)
    inputs, right = _inputs(examples), np.array([example.right for example in examples])
    folds = np.array([_fold(example) for example in examples])
    likely = _unseen(inputs, right, folds)
    chosen = threshold(likely, right, risk)
    report = _report(worker, likely, right, chosen, _sent(inputs, right, folds, risk))
    if chosen is None:
        return None, report
    learned = Learned(
        source=source,
        requests=len(examples),
        right=int(right.sum()),
        risk=risk,
        made=f"{datetime.now(UTC):%Y-%m-%d}",
    )
    made = _tiers(_fitted(inputs, right), examples, worker=worker, model=model, least=chosen, learned=learned)
    return made, report


def threshold(likely: Floats, right: Flags, risk: float) -> float | None:
    """The least probability from which on no more than `risk` of the answers are wrong; `None` when there is none.

    It is never below 0.5: what is more likely wrong than right is not sent, however much risk is left. One wrong answer
    is added to those that were seen, because the best of many thresholds looks better than it is; in simulations with
    100 to 1,000 requests the share of wrong answers then stays, on average, below the risk.
    """
    order = np.argsort(-likely, kind="stable")[: int((likely >= EVEN).sum())]
    values, wrong = likely[order], np.cumsum(~right[order])
    fits = (wrong + 1) / (np.arange(len(order)) + 2) <= risk
    fits &= np.append(values[1:] != values[:-1], np.ones(min(len(order), 1), dtype=bool))  # equals go together
    if not fits.any():
        return None
    last = int(np.flatnonzero(fits)[-1])
    return EVEN if last == len(order) - 1 else float(values[last])


def _different(examples: Iterable[Example]) -> list[Example]:
    """Each request once, or a few asked again and again would count as many; right if it always was."""
    known: dict[tuple[str, frozenset[str]], Example] = {}
    for example in examples:
        same = example.message, holds(example.request)
        known[same] = replace(example, right=example.right and known.get(same, example).right)
    return list(known.values())


def _check_enough(examples: Sequence[Example], worker: str, risk: float) -> None:
    right = sum(example.right for example in examples)
    wrong = len(examples) - right
    need_right = max(FEWEST_OF_EACH, ceil(1 / risk))
    if len(examples) >= FEWEST and right >= need_right and wrong >= FEWEST_OF_EACH:
        return
    message = (
        f"too little to learn tiers from: {len(examples)} different requests, of which {worker!r} alone answers "
        f"{right} right and {wrong} wrong; at least {FEWEST} are needed, {need_right} of them right and "
        f"{FEWEST_OF_EACH} wrong"
    )
    if len(examples) >= FEWEST and wrong < FEWEST_OF_EACH:
        message += f"; as it is, policy.single = {worker!r} may do without tiers"
    raise ConfigError(message)


def _inputs(examples: Sequence[Example]) -> csr_array:
    """A row for each: its words, what it holds, its length, and a one."""
    kinds = _kinds(examples)
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    for number, example in enumerate(examples):
        marks = words(example.message)
        marks |= {BUCKETS + kinds.index(name): 1.0 for name in holds(example.request)}
        marks |= {BUCKETS + len(kinds): length(example.message), BUCKETS + len(kinds) + 1: 1.0}
        rows += [number] * len(marks)
        columns += marks.keys()
        values += marks.values()
    return csr_array((values, (rows, columns)), shape=(len(examples), BUCKETS + len(kinds) + 2))


def _kinds(examples: Iterable[Example]) -> list[str]:
    return sorted({name for example in examples for name in holds(example.request)})


def _fitted(inputs: csr_array, right: Flags) -> Floats:
    """Weights of the likeliest logistic regression, whose last one, the bias, is free."""
    used = np.unique(inputs.indices)  # the weights of what never occurs stay 0
    seen = inputs[:, used]
    transposed = seen.T.tocsr()
    pull = np.full(len(used), PENALTY)
    pull[-1] = 1e-6

    def loss(weights: Floats) -> tuple[float, Floats]:
        scores = seen @ weights
        value = np.logaddexp(0, scores).sum() - scores[right].sum() + weights @ (pull * weights) / 2
        return float(value), transposed @ (expit(scores) - right) + pull * weights

    weights = np.zeros(inputs.shape[1])
    weights[used] = minimize(loss, np.zeros(len(used)), jac=True, method="L-BFGS-B").x
    return weights


def _fold(example: Example) -> int:
    """Decided by the words alone, so that it is the same every time."""
    return hashlib.sha256(example.message.encode()).digest()[0] % FOLDS


def _unseen(inputs: csr_array, right: Flags, folds: NDArray[np.int64]) -> Floats:
    """The probability of each by a classifier that has not seen its fold."""
    likely = np.zeros(len(right))
    for fold in np.unique(folds):
        seen = folds != fold
        likely[~seen] = expit(inputs[~seen] @ _fitted(inputs[seen], right[seen]))
    return likely


def _sent(inputs: csr_array, right: Flags, folds: NDArray[np.int64], risk: float) -> Flags:
    """Which would be sent to one call by a classifier and a threshold that both have not seen their fold."""
    sent = np.zeros(len(right), dtype=bool)
    for fold in np.unique(folds):
        seen = folds != fold
        chosen = threshold(_unseen(inputs[seen], right[seen], folds[seen]), right[seen], risk)
        if chosen is not None:
            sent[~seen] = expit(inputs[~seen] @ _fitted(inputs[seen], right[seen])) >= chosen
    return sent


def _tiers(
    weights: Floats, examples: Sequence[Example], *, worker: str, model: str, least: float, learned: Learned
) -> Tiers:
    kinds = _kinds(examples)
    times = Counter(name for example in examples for name in holds(example.request))
    rounded = [round(float(weight), DIGITS) for weight in weights]
    return Tiers(
        worker=worker,
        model=model,
        threshold=least,
        longest=LONGER * max(len(example.message) for example in examples),
        seen=frozenset(name for name in kinds if times[name] >= ENOUGH_TO_KNOW),
        bias=rounded[-1],
        length=rounded[-2],
        held=dict(zip(kinds, rounded[BUCKETS:-2], strict=True)),
        words={place: weight for place, weight in enumerate(rounded[:BUCKETS]) if weight},
        learned=learned,
    )


# ------------------------------------------------------------------------------------------ report


def _report(worker: str, likely: Floats, right: Flags, chosen: float | None, sent: Flags) -> LearningReport:
    return LearningReport(
        worker=worker,
        right=_share(right),
        accuracy=_share((likely >= EVEN) == right),
        brier=float(np.mean((likely - right) ** 2)),
        brier_of_none=float(right.mean() * (1 - right.mean())),
        bins=tuple(_bins(likely, right)),
        threshold=chosen,
        sent=_share(sent),
        wrong=_share(~right[sent]) if sent.any() else None,
    )


def _bins(likely: Floats, right: Flags) -> Iterable[Bin]:
    """As many requests in each as in any other."""
    for members in np.array_split(np.argsort(likely, kind="stable"), BINS):
        yield Bin(predicted=float(likely[members].mean()), right=_share(right[members]))


def _share(flags: Flags) -> Estimate:
    return estimate(flags.astype(float).tolist())
