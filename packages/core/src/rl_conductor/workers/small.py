"""The small pool: three workers of complementary skill from small open models, for machines without keys or GPU."""

from __future__ import annotations

from pathlib import Path

from rl_conductor.models import Model, model
from rl_conductor.models.cached import CachedModel
from rl_conductor.pool import Worker, WorkerPool
from rl_conductor.retrieval import Library
from rl_conductor.types import Card, Sampling
from rl_conductor.workers.coder import CoderModel
from rl_conductor.workers.reader import ReaderModel

SMALL, MEDIUM = "embedded:qwen2.5-coder-0.5b", "embedded:qwen2.5-coder-1.5b"
STRENGTHS = {
    "reader": "looks facts up in the library and quotes them; no calculation, no exact wording",
    "coder": "calculates by running a program; knows no facts of the library, writes no prose",
    "writer": "writes short English text and number words; knows no facts of the library, poor at sums",
}
MOST_TOKENS = {"reader": 64, "coder": 256, "writer": 64}


def small_pool(
    library: Library | str | Path,
    *,
    reader: Model | str = SMALL,
    coder: Model | str = MEDIUM,
    writer: Model | str = MEDIUM,
    cache: str | Path | None = None,
) -> WorkerPool:
    """A reader of `library`, a coder and a writer.

    Args:
        library: what the reader alone can look up, or the text file or folder to make it of.
        reader: the base model that reads.
        coder: the base model that writes programs.
        writer: the model that writes.
        cache: an SQLite file that remembers every reply of the base models, so that a run can be repeated for free.
    """
    bases = {name: _base(base, cache) for name, base in (("reader", reader), ("coder", coder), ("writer", writer))}
    models: dict[str, Model] = {
        "reader": ReaderModel(bases["reader"], library, passages=2),
        "coder": CoderModel(bases["coder"]),
        "writer": bases["writer"],
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
    return made if cache is None else CachedModel(made, cache)
