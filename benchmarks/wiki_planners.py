"""Compares a planner that learned from examples, and one with evolved instructions, with the same planner unlearned.

Run with `uv run python benchmarks/wiki_planners.py --minutes 85`. The questions and workers are those of
`examples/wiki`; the planner stands for a vendor's model, whose weights can't be trained. All learners are proved, also
where choosing among workflows has no room. No model is called over the network and nothing is spent.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from rl_conductor import Limits, Planner, Sampling
from rl_conductor.models import model
from rl_conductor_training.cli.learn import print_record
from rl_conductor_training.learn import EvolvedInstructions, LearnRecord, LearnSettings, learn
from rl_conductor_training.learn.learners.examples import NearestExamples
from rl_conductor_training.learn.learners.fixed import BestWorker, BestWorkflow

WIKI = Path(__file__).parents[1] / "examples" / "wiki"
LEARNERS = {"examples": NearestExamples, "instructions": EvolvedInstructions}


async def learn_planners(names: list[str], *, planner: str, threads: int, minutes: float, out: Path) -> LearnRecord:
    """Learns within the time, from the folder's experience if it has any."""
    return await learn(
        f"jsonl:{WIKI / 'questions.jsonl'}",
        WIKI / "pool.toml",
        out=out,
        budget=Limits(seconds=60 * minutes),
        planner=Planner(
            model=model(planner, engine="planner", parallel=1, threads=threads),
            samples=1,
            sampling=Sampling(max_tokens=160, temperature=0.0),
            timeout=None,  # plans wait for one another, and each takes a minute or so
        ),
        settings=LearnSettings(
            concurrency=2,
            requires_room=False,
            learners=(BestWorker, BestWorkflow, *(LEARNERS[name] for name in names)),
        ),
        on_progress=lambda progress: None if progress.row else print(progress.stage, flush=True),
    )


def main() -> None:
    """Learns, and prints the table of the proof."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learners", nargs="+", default=list(LEARNERS), choices=LEARNERS, metavar="LEARNER")
    parser.add_argument("--planner", default="embedded:qwen2.5-coder-1.5b")
    parser.add_argument("--minutes", type=float, default=85)
    parser.add_argument("--threads", type=int, default=2, help="threads of the planner")
    parser.add_argument("--out", type=Path, default=Path("runs/wiki-planners"))
    args = parser.parse_args()
    record = asyncio.run(
        learn_planners(args.learners, planner=args.planner, threads=args.threads, minutes=args.minutes, out=args.out)
    )
    print_record(record, args.out)


if __name__ == "__main__":
    main()
