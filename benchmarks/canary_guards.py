"""Simulates how often a canary's guard ends a healthy canary, and how soon it ends a failing one.

Run with `uv run python benchmarks/canary_guards.py`. The guard is `errors = 0.05`, checked after each answer. No
model is called and nothing is spent.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections import deque
from decimal import Decimal
from functools import cache

from rich.console import Console
from rich.table import Table

from rl_conductor_server.experiments.guards import find_tripped_guard
from rl_conductor_server.settings import Guards
from rl_conductor_server.store.models import AnswerOutcome

SEED, TRIALS, ANSWERS = 0, 1_000, 2_000
FAILURE_RATES = (0.02, 0.03, 0.05, 0.10, 0.20)
"""Shares of failing requests, on both sides of the guard's limit."""
GUARDS = Guards(errors=0.05, losses=None)
BAD, GOOD = (AnswerOutcome(failed=failed, seconds=1.0, cost=Decimal(0)) for failed in (True, False))


@cache
def breaks_guard(failures: int, total: int) -> bool:
    """Whether this many failures among the answers of the window break the guard."""
    return find_tripped_guard(GUARDS, [BAD] * failures + [GOOD] * (total - failures), ()) is not None


def answers_until_end(failure_rate: float, generator: random.Random) -> int | None:
    """Returns the number of answers until the guard ends the canary; `None` if it never does."""
    window: deque[bool] = deque(maxlen=GUARDS.window)
    for count in range(1, ANSWERS + 1):
        window.append(generator.random() < failure_rate)
        if breaks_guard(sum(window), len(window)):
            return count
    return None


def main() -> None:
    """Runs the simulation and prints a table."""
    table = Table("fails at", "ended", "after, median", box=None, pad_edge=False)
    generator = random.Random(SEED)
    for failure_rate in FAILURE_RATES:
        answers = [count for _ in range(TRIALS) if (count := answers_until_end(failure_rate, generator)) is not None]
        median = f"{statistics.median(answers):.0f} answers" if answers else ""
        table.add_row(f"{failure_rate:.0%}", f"{len(answers) / TRIALS:.1%} of trials", median)
    console = Console()
    console.print(table)
    console.print(
        f"\n{TRIALS:,} trials of {ANSWERS:,} answers each, seed {SEED}; no model called, nothing spent", style="dim"
    )


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
