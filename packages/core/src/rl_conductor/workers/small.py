"""The small pool: three workers of complementary skill from one small open model, for machines without keys or GPU."""

from __future__ import annotations

from pathlib import Path

from rl_conductor.models import Model, model
from rl_conductor.models.cached import CachedModel
from rl_conductor.pool import Worker, WorkerPool
from rl_conductor.retrieval import Library
from rl_conductor.types import Card, Sampling
from rl_conductor.workers.coder import CoderModel
from rl_conductor.workers.compact import CompactModel
from rl_conductor.workers.reader import ReaderModel
from rl_conductor.workers.writer import WriterModel

SMALL = "embedded:qwen2.5-coder-0.5b"
STRENGTHS = {
    "reader": "looks facts up in the library, one at a time; cannot calculate",
    "coder": "calculates by running a program; knows no facts, writes figures only",
    "writer": "writes numbers in words, and other text in an exact form; cannot calculate, knows no facts",
}
MOST_TOKENS = {"reader": 32, "coder": 80, "writer": 24}


def small_pool(
    library: Library | str | Path,
    *,
    reader: Model | str = SMALL,
    coder: Model | str = SMALL,
    writer: Model | str = SMALL,
    cache: str | Path | None = None,
) -> WorkerPool:
    """A reader of `library`, a coder and a writer.

    Args:
        library: what the reader alone can look up, or the text file or folder to make it of.
        reader: the base model that reads.
        coder: the base model that writes programs.
        writer: the base model that writes.
        cache: an SQLite file that remembers every reply of the base models, so that a run can be repeated for free.
    """
    bases = {name: _base(base, cache) for name, base in (("reader", reader), ("coder", coder), ("writer", writer))}
    models: dict[str, Model] = {
        "reader": ReaderModel(bases["reader"], library, passages=3),
        "coder": CoderModel(bases["coder"]),
        "writer": WriterModel(bases["writer"]),
    }
    return WorkerPool(
        Worker.of(
            name,
            made,
            card=Card(name=name, strengths=STRENGTHS[name]),
            sampling=Sampling(temperature=0.0, max_tokens=MOST_TOKENS[name]),
        )
        for name, made in models.items()
    )


def _base(base: Model | str, cache: str | Path | None) -> Model:
    made = model(base) if isinstance(base, str) else base
    return CompactModel(made if cache is None else CachedModel(made, cache))
