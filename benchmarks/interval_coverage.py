"""Measures how often the intervals of clustered differences cover the true difference, by simulation.

Run with `uv run python benchmarks/interval_coverage.py`. Two systems answer the same questions, of which those of a
group are alike: how much better the first one is differs from group to group, by `spread`. Each row draws many such
benchmarks and reports how often the 95 % interval has the true mean, how wide it is, and how often it shows a gain. No
model is called and nothing is spent.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.stats import t

from rl_conductor_training.statistics import adjusted_wald_interval

Floats = NDArray[np.float64]
Interval = Callable[[Floats, list[str]], tuple[float, float]]

SHAPES = ((6, 3), (12, 3), (12, 6), (36, 3))
"""Groups, and questions of each."""
TRUTHS = ((0.0, 0.0), (0.0, 0.3), (0.15, 0.2), (0.3, 0.4), (0.6, 0.4))
"""The true mean difference, and the standard deviation of that of the groups."""
CHANCE = 0.15
"""Probability that only one system is right although they are equally good on a group."""


def draw(rng: np.random.Generator, groups: int, size: int, mean: float, spread: float) -> Floats:
    """Draws the difference of each question: -1, 0 or 1."""
    of_groups = np.full(groups, mean)
    if spread:
        share = (1 + mean) / 2
        weight = share * (1 - share) / (spread / 2) ** 2 - 1
        of_groups = 2 * rng.beta(share * weight, (1 - share) * weight, groups) - 1
    differ = np.clip(np.abs(of_groups) + CHANCE, 0, 1)
    wins, losses = (differ + of_groups) / 2, (differ - of_groups) / 2
    draws = rng.random((groups, size))
    won, lost = draws < wins[:, None], draws >= 1 - losses[:, None]
    differences: Floats = (won.astype(float) - lost.astype(float)).ravel()
    return differences


def ours(values: Floats, groups: list[str]) -> tuple[float, float]:
    """Returns the interval of the benchmark's reports."""
    return adjusted_wald_interval(values, groups, lower=-1)


def students(values: Floats, groups: list[str]) -> tuple[float, float]:
    """Returns Student's interval of the means of groups of equal size, without added values."""
    means = values.reshape(len(set(groups)), -1).mean(axis=1)
    half_width = t.ppf(0.975, means.size - 1) * means.std(ddof=1) / np.sqrt(means.size)
    return means.mean() - half_width, means.mean() + half_width


def measure(interval: Interval, benchmarks: list[Floats], groups: list[str], mean: float) -> tuple[str, str, str]:
    """Returns the coverage, the mean width, and the share of intervals above zero."""
    bounds = np.array([interval(values, groups) for values in benchmarks])
    covered = (bounds[:, 0] <= mean) & (mean <= bounds[:, 1])
    return f"{covered.mean():.3f}", f"{(bounds[:, 1] - bounds[:, 0]).mean():.2f}", f"{(bounds[:, 0] > 0).mean():.2f}"


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2_000)
    count = parser.parse_args().draws
    table = Table("groups", "of", "mean", "spread", "covers", "width", "gain", "Student's", "width", "gain", box=None)
    rng = np.random.default_rng(0)
    for groups, size in SHAPES:
        names = [str(group) for group in range(groups) for _ in range(size)]
        for mean, spread in TRUTHS:
            benchmarks = [draw(rng, groups, size, mean, spread) for _ in range(count)]
            cells = (*measure(ours, benchmarks, names, mean), *measure(students, benchmarks, names, mean))
            table.add_row(str(groups), str(size), f"{mean:g}", f"{spread:g}", *cells)
    console = Console()
    console.print(table)
    console.print(
        f"\n{count:,} simulated benchmarks in each row, seed 0; no model called, nothing spent", highlight=False
    )


if __name__ == "__main__":
    main()
