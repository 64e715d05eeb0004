"""Counts the tokens of plans and prompts, and the share of a planner's prompt that the next turn begins with.

Run with `uv run python benchmarks/prompt_tokens.py [ENCODING]`. The counts depend on the texts and the encoding, and by
a few tokens on random nonces. The framing of messages, which vendors count differently, is left out. No model is called
and nothing is spent.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Literal

import llama_index.core
import tiktoken
from rich.console import Console
from rich.table import Table

from rl_conductor import Card, Conductor, Message, Planner, Policy, Price, ScriptedModel, Worker, WorkerPool
from rl_conductor.plan_text import render
from rl_conductor.types import Request
from rl_conductor.workflow import Step, Workflow

QUESTION = "A train leaves at 9:40 and arrives at 13:05, with a stop of 15 minutes. How long does it drive?"
REPLY_TOKENS = 300
NAMES = ("gpt-5", "claude-opus", "gemini-pro", "qwen-coder", "deepseek-r1", "gemma-small", "mistral-writer")
STRENGTHS = (
    "careful reasoning over long problems, mathematics and proofs",
    "long documents, careful writing and code review",
    "facts of the world, pictures and many languages",
    "writing, testing and repairing programs in Python",
    "competition mathematics and logic puzzles",
    "quick answers to simple questions",
    "letters, summaries and texts in French",
)
WORKFLOW = Workflow(
    steps=(
        Step(subtask="Solve the problem step by step and give the number.", worker="gpt-5"),
        Step(subtask="Solve the problem with an equation and give the number.", worker="deepseek-r1"),
        Step(
            subtask="Compare the two solutions, settle any difference, and give the final answer with its reasons.",
            worker="gpt-5",
            access=frozenset({0, 1}),
        ),
    )
)
Count = Callable[[str], int]


def load_encoding(name: str) -> tiktoken.Encoding:
    """Loads an encoding from the files that come with LlamaIndex, so that nothing is downloaded."""
    cache = Path(llama_index.core.__file__).parent / "_static" / "tiktoken_cache"
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(cache))
    return tiktoken.get_encoding(name)


def cards(count: int) -> list[Card]:
    """Creates this many cards with strengths, accuracy, price and latency."""
    return [
        Card(
            name=NAMES[i % len(NAMES)] + (f"-{i}" if i >= len(NAMES) else ""),
            strengths=STRENGTHS[i % len(NAMES)],
            accuracy={"math": 0.91 - i % 7 / 20, "code": 0.74 + i % 7 / 50},
            price=Price(input=Decimal("1.25"), output=Decimal(10)),
            latency=6.0 + i / 10,
        )
        for i in range(count)
    ]


def plan_text(count: int) -> str:
    """Returns the plan of the benchmark as a planner writes it for a pool of this size."""
    space = Policy().space(cards(count), max_steps=5)
    return render(WORKFLOW, space, "rows", reasoning="Sums can slip: two models solve it, one compares.")


def run(
    workers: int, conversation: Sequence[Message], reply: str, *, form: Literal["rows", "object"] = "rows"
) -> tuple[Request, list[Request]]:
    """Runs one turn; returns the planner's request and those of the workers."""
    planner, worker = ScriptedModel(lambda _: plan_text(workers)), ScriptedModel(lambda _: reply)
    pool = [Worker.of(card.name, worker, card=card) for card in cards(workers)]
    Conductor(Planner(model=planner, form=form, samples=1), WorkerPool(pool)).run_sync(conversation)
    return planner.requests[0], worker.requests


def text_of(request: Request) -> str:
    """Joins the texts of a request's messages."""
    return "\n".join(message.text for message in request.messages)


def shared(first: Request, second: Request, encode: Callable[[str], list[int]]) -> float:
    """Returns the share of the first prompt's tokens with which the second begins."""
    before, after = encode(text_of(first)), encode(text_of(second))
    equal = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
    return sum(1 for _ in equal) / len(before)


def turns(count: int, reply: str) -> list[list[Message]]:
    """Creates the turns of one conversation, each with all that was said before it."""
    conversation = [Message.user(QUESTION)]
    result = [list(conversation)]
    for number in range(1, count):
        conversation += [Message.assistant(reply), Message.user(f"And with {number} more stops of 10 minutes?")]
        result.append(list(conversation))
    return result


def main() -> None:
    """Prints a table of tokens and shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("encoding", nargs="?", default="o200k_base", help="an encoding of tiktoken")
    name = parser.parse_args().encoding
    encoding = load_encoding(name)

    def count(text: str) -> int:
        return len(encoding.encode(text))

    table = Table("what", "tokens", "target", box=None)
    space = Policy().space(cards(7), max_steps=5)
    for form in ("lists", "rows", "object"):
        table.add_row(f"plan of 3 steps in the form {form}", str(count(render(WORKFLOW, space, form))), "")
    reply = " step" * REPLY_TOKENS
    assert count(reply) == REPLY_TOKENS
    prompts = {}
    for workers in (1, 7, 20, 200):
        request, worker_requests = run(workers, turns(1, reply)[0], reply)
        prompts[workers] = count(text_of(request)) - count(QUESTION)
        target = "<= 600" if workers == 7 else ""
        table.add_row(f"planner's prompt without the question, {workers} workers", f"{prompts[workers]:,}", target)
        if workers == 7:
            evidence = sum(count(text_of(request)) for request in worker_requests)
            total = count(text_of(request)) + count(plan_text(7)) + evidence + 3 * REPLY_TOKENS
    as_object = count(text_of(run(7, turns(1, reply)[0], reply, form="object")[0])) - count(QUESTION)
    table.add_row("the same for 7 workers in the form object", f"{as_object:,}", "<= 600")
    table.add_row("each worker, mean of 2 to 7", f"{(prompts[7] - prompts[1]) / 6:.1f}", "<= 35")
    table.add_row("workers' prompts of 3 steps, two replies read", f"{evidence:,}", "")
    table.add_row("the whole run with 7 workers, prompts and replies", f"{total:,}", "<= 2,000")
    requests = [run(7, turn, reply)[0] for turn in turns(5, reply)]
    shares = [shared(first, second, encoding.encode) for first, second in itertools.pairwise(requests)]
    table.add_row("share of a planner's prompt that the next turn begins with", f"{min(shares):.0%}", ">= 80%")
    console = Console()
    console.print(table)
    console.print(f"\nencoding {name}; replies of {REPLY_TOKENS} tokens; no model called, nothing spent")


if __name__ == "__main__":
    main()
