"""The small pool: three workers of complementary skills over one small open model, without API keys or a GPU."""

from __future__ import annotations

from pathlib import Path

from rl_conductor.models import Model, model
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.types import Card, Sampling
from rl_conductor_training.workers.cached_model import CachedModel
from rl_conductor_training.workers.coder import CoderModel
from rl_conductor_training.workers.compact import CompactModel
from rl_conductor_training.workers.passage_index import PassageIndex
from rl_conductor_training.workers.reader import ReaderModel
from rl_conductor_training.workers.writer import WriterModel

SMALL_MODEL = "embedded:qwen2.5-coder-0.5b"
STRENGTHS = {
    "reader": "looks facts up in the library, one at a time; cannot calculate",
    "coder": "calculates by running a program; knows no facts, writes figures only",
    "writer": "writes numbers in words, and other text in an exact form; cannot calculate, knows no facts",
}
MAX_TOKENS = {"reader": 32, "coder": 80, "writer": 24}


def small_pool(
    library: PassageIndex | str | Path,
    *,
    reader: Model | str = SMALL_MODEL,
    coder: Model | str = SMALL_MODEL,
    writer: Model | str = SMALL_MODEL,
    cache: str | Path | None = None,
) -> WorkerPool:
    """Builds a pool of a reader of `library`, a coder and a writer.

    Args:
        library: the passages that only the reader can search, or the text file or folder to index.
        reader: base model of the reader.
        coder: base model of the coder.
        writer: base model of the writer.
        cache: SQLite file that caches every reply of the base models, so that a run can be repeated for free.
    """
    bases = {
        name: _build_base(base, cache) for name, base in (("reader", reader), ("coder", coder), ("writer", writer))
    }
    models: dict[str, Model] = {
        "reader": ReaderModel(bases["reader"], library, passages=3),
        "coder": CoderModel(bases["coder"]),
        "writer": WriterModel(bases["writer"]),
    }
    return WorkerPool(
        Worker.of(
            name,
            worker_model,
            card=Card(name=name, strengths=STRENGTHS[name]),
            sampling=Sampling(temperature=0.0, max_tokens=MAX_TOKENS[name]),
        )
        for name, worker_model in models.items()
    )


def _build_base(base: Model | str, cache: str | Path | None) -> Model:
    base_model = model(base) if isinstance(base, str) else base
    return CompactModel(base_model if cache is None else CachedModel(base_model, cache))
