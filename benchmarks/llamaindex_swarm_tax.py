"""The swarm tax: what a query engine spends with the Conductor, against one of its workers alone.

    python benchmarks/llamaindex_swarm_tax.py [QUESTIONS]

Both answer the same questions over the same retrieved passages, with what this machine offers (see
`Conductor.from_env`), and are counted by LlamaIndex's own token counter. One run, no repeats: tokens of plans and
answers vary from run to run with models that sample.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from llama_index.core import Settings
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler

from llama_index.llms.conductor import Conductor
from rl_conductor import Policy, discover

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from llamaindex_corpus import index_of

QUESTIONS = {
    "How many weeks of parental leave are there?": "20",
    "What does a Heron kite cost?": "189",
    "How long does the battery of the altimeter last?": "70",
    "Within how many days may a kite be sent back?": "45",
    "How many test flights does a new kite need?": "three",
}


@dataclass(frozen=True)
class Asked:
    """One question, answered."""

    right: bool
    calls: int
    tokens: int
    seconds: float


def asked(llm: Conductor, question: str, right: str) -> Asked:
    """What it took to answer, and whether the answer has what is right in it."""
    Settings.callback_manager = CallbackManager([counter := TokenCountingHandler()])
    engine = index_of().as_query_engine(llm=llm, similarity_top_k=2)
    started = time.perf_counter()
    answer = str(engine.query(question))
    seconds = time.perf_counter() - started
    assert llm.trace is not None
    return Asked(right in answer.lower(), llm.trace.usage.calls, counter.total_llm_token_count, seconds)


def main(count: int) -> None:
    """Print a table: one system a line."""
    found = discover()
    best = found.policy.final or next(iter(found.pool))
    systems = {"conductor": Conductor(), f"{best} alone": Conductor(policy=Policy(single=best))}
    print("; ".join(found.reasons))
    print(f"{count} questions, 1 run each\n")
    print(f"{'':<16}{'right':>7}{'calls':>8}{'tokens':>9}{'seconds':>9}   (calls, tokens, seconds: mean a question)")
    spent = []
    for name, llm in systems.items():
        rows = [asked(llm, question, right) for question, right in list(QUESTIONS.items())[:count]]
        correct = sum(row.right for row in rows)
        calls, tokens = statistics.mean(row.calls for row in rows), statistics.mean(row.tokens for row in rows)
        seconds = statistics.mean(row.seconds for row in rows)
        spent.append(tokens)
        print(f"{name:<16}{correct:>4}/{count}{calls:>8.1f}{tokens:>9.0f}{seconds:>9.1f}")
    print(f"\nswarm tax: {spent[0] / spent[1]:.1f} times the tokens")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else len(QUESTIONS))
