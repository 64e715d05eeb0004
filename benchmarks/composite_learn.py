"""Learns a conductor for the small pool from composite questions, as `rl-conductor learn` does for a pool file.

Run with `uv run python benchmarks/composite_learn.py --minutes 30`. It learns from 80 questions of the training
templates and prints the table of 24 questions of the held-out ones. `rl-conductor bench recipes/bench-learned.toml
--limit 36` then compares the learned conductor with the published one on other questions of the held-out templates. No
model is called over the network and nothing is spent.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

from rich.console import Console

from rl_conductor import Limits, Planner, Sampling
from rl_conductor.models import model
from rl_conductor_training.cli.learn import print_record
from rl_conductor_training.learn import LearnProgress, LearnRecord, LearnSettings, learn
from rl_conductor_training.tasks.composite.questions import composite
from rl_conductor_training.workers.pool_settings import SmallPool
from rl_conductor_training.workers.reply_cache import ReplyCache
from rl_conductor_training.workers.small import SMALL_MODEL


async def learn_composite(
    *, size: int, heldout: int, minutes: float, seed: int, threads: int, out: Path, console: Console
) -> LearnRecord:
    """Learns from training questions within the time."""
    replies = ReplyCache(None)
    start = time.monotonic()
    stage = ""

    def report(progress: LearnProgress) -> None:
        nonlocal stage
        if progress.stage != stage:
            stage = progress.stage
            console.print(f"{time.monotonic() - start:6.0f} s  {stage}", highlight=False, soft_wrap=True)

    planner = Planner(
        model=model(SMALL_MODEL, threads=threads), samples=1, sampling=Sampling(max_tokens=160, temperature=0.0)
    )
    try:
        return await learn(
            composite("train", size=size, seed=seed),
            SmallPool(threads=threads).build(replies),
            out=out,
            heldout=composite("heldout", size=heldout, seed=seed + 1),  # the benchmark's own questions have seed 0
            budget=Limits(seconds=60 * minutes),
            planner=planner,
            settings=LearnSettings(seed=seed),
            on_progress=report,
        )
    finally:
        await replies.aclose()


def main() -> None:
    """Learns, and prints the table of the proof."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=80)
    parser.add_argument("--heldout", type=int, default=24)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2, help="threads of each model")
    parser.add_argument("--out", type=Path, default=Path("runs/composite-learned"))
    args = parser.parse_args()
    console = Console()
    record = asyncio.run(
        learn_composite(
            size=args.size,
            heldout=args.heldout,
            minutes=args.minutes,
            seed=args.seed,
            threads=args.threads,
            out=args.out,
            console=console,
        )
    )
    print_record(record, args.out)


if __name__ == "__main__":
    main()
