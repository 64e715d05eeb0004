"""Measures the cost in tokens of a query engine with the Conductor, relative to one of its workers alone.

Run with `uv run python benchmarks/llamaindex_swarm_tax.py [QUESTIONS]`. All answer the same questions over the same
retrieved passages, with the models that this machine offers (see `Conductor.from_env`), and are counted by LlamaIndex's
token counter. An answer is right when its last number is. The embedded workers are greedy and their planner has seed 1;
other models' numbers vary from run to run.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from llama_index.core import Settings
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler

from llama_index.llms.conductor import Conductor
from rl_conductor import Policy, discover
from rl_conductor.scoring import mean
from rl_conductor_training.tasks import Sample, Score
from rl_conductor_training.tasks.scorers.text import numeric

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from llamaindex_corpus import index_of

QUESTIONS = {
    "How many weeks of parental leave are there?": "20",
    "What does a Heron kite cost, in euros?": "189",
    "How many hours does the battery of the altimeter last?": "70",
    "Within how many days may a kite be sent back?": "45",
    "How many days of paid leave are there in a year?": "28",
    "What does Tomas Weir earn a month, in euros?": "4150",
    "How many euros a year is the training budget of an employee?": "900",
    "What does the frame of a Heron kite weigh, in grams?": "310",
    "With how many kilograms is a bridle pulled?": "60",
    "How many kites did the largest customer buy last year?": "240",
    "What does a stand at a fair cost, in euros?": "2300",
    "What percentage of discount do shops get?": "30",
}
PASSAGES = 2


@dataclass(frozen=True)
class AnsweredQuestion:
    """Score and spending of one answer."""

    score: Score
    calls: int
    tokens: int
    seconds: float


def answer_question(llm: Conductor, question: str, expected: str) -> AnsweredQuestion:
    """Answers a question, scores the answer and counts the spending."""
    Settings.callback_manager = CallbackManager([counter := TokenCountingHandler()])
    engine = index_of().as_query_engine(llm=llm, similarity_top_k=PASSAGES)
    started = time.perf_counter()
    answer = str(engine.query(question))
    seconds = time.perf_counter() - started
    score = asyncio.run(numeric(Sample(id=question, question=question, answer=expected), answer))
    assert llm.trace is not None
    return AnsweredQuestion(score, llm.trace.usage.calls, counter.total_llm_token_count, seconds)


def main(count: int) -> None:
    """Runs the systems and prints a table with a line per system."""
    discovered = discover()
    best_worker = discovered.policy.final or next(iter(discovered.pool))
    systems = {
        f"{best_worker} alone": Conductor(policy=Policy(single=best_worker)),
        "conductor, mini": Conductor(profile="mini"),
        "conductor": Conductor(),
    }
    print("; ".join(discovered.reasons))
    print(f"{count} questions, {PASSAGES} passages each; means per question; right with its standard error\n")
    print(f"{'':<16}{'right':>14}{'calls':>8}{'tokens':>9}{'x alone':>9}{'seconds':>9}", flush=True)
    single_tokens = 0.0
    for name, llm in systems.items():
        rows = [answer_question(llm, question, expected) for question, expected in list(QUESTIONS.items())[:count]]
        accuracy, error = mean([row.score for row in rows])
        calls, tokens = statistics.mean(row.calls for row in rows), statistics.mean(row.tokens for row in rows)
        single_tokens = single_tokens or tokens
        seconds = statistics.mean(row.seconds for row in rows)
        cell = f"{accuracy:.2f} ± {error:.2f}"
        print(
            f"{name:<16}{cell:>14}{calls:>8.1f}{tokens:>9.0f}{tokens / single_tokens:>9.1f}{seconds:>9.1f}", flush=True
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", nargs="?", type=int, default=len(QUESTIONS), help="how many of the questions")
    main(parser.parse_args().questions)
