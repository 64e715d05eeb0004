"""How often a canary's guard ends what it should not, and how soon what it should: simulated answers, the real guard.

Run with `uv run python benchmarks/canary_guards.py`. The guard is `errors = 0.05`, looked at after each answer. No
model is called and nothing is spent.
"""

from __future__ import annotations

import random
import statistics
from collections import deque
from decimal import Decimal
from functools import cache

from rich.console import Console
from rich.table import Table

from rl_conductor.adopt.guards import Guards, broken
from rl_conductor.store.rows import Answered

SEED, TRIALS, ANSWERS = 0, 1_000, 2_000
FAILING = (0.02, 0.03, 0.05, 0.10, 0.20)
"""Shares of requests that fail; the bound lies in their middle."""
GUARDS = Guards(errors=0.05, losses=None)
BAD, GOOD = (Answered(failed=failed, seconds=1.0, cost=Decimal(0)) for failed in (True, False))


@cache
def ends(bad: int, of: int) -> bool:
    """Whether so many failures among so many answers break the guard."""
    return broken(GUARDS, [BAD] * bad + [GOOD] * (of - bad), ()) is not None


def ended_after(failing: float, draw: random.Random) -> int | None:
    """How many answers a canary gave before it was ended; `None` if it never was."""
    window: deque[bool] = deque(maxlen=GUARDS.window)
    for count in range(1, ANSWERS + 1):
        window.append(draw.random() < failing)
        if ends(sum(window), len(window)):
            return count
    return None


def main() -> None:
    """Simulate and print."""
    table = Table("fails at", "ended", "after, median", box=None, pad_edge=False)
    draw = random.Random(SEED)
    for failing in FAILING:
        after = [count for _ in range(TRIALS) if (count := ended_after(failing, draw)) is not None]
        median = f"{statistics.median(after):.0f} answers" if after else ""
        table.add_row(f"{failing:.0%}", f"{len(after) / TRIALS:.1%} of trials", median)
    console = Console()
    console.print(table)
    console.print(
        f"\n{TRIALS:,} trials of {ANSWERS:,} answers each, seed {SEED}; no model called, nothing spent", style="dim"
    )


if __name__ == "__main__":
    main()
