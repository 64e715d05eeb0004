"""A bench of toys: questions that one can add, one can spell, and some that need both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rl_conductor.models import PROVIDERS
from rl_conductor_training.bench.results import ResultFile
from rl_conductor_training.bench.runner import Bench, TaskResult
from rl_conductor_training.bench.settings import read_settings
from training.bench import toys

ADD = [
    {"id": f"a{a}{b}", "question": f"add {a} {b}", "answer": str(a + b), "domain": "add", "depth": 1}
    for a in (1, 2, 3)
    for b in (1, 2)
]
SPELL = [
    {"id": f"s{n}", "question": f"spell {n}", "answer": toys.WORDS[n], "domain": "spell", "depth": 1} for n in (4, 5)
]
BOTH = [
    {
        "id": f"b{a}{b}",
        "question": f"add {a} {b} and spell it",
        "answer": toys.WORDS[a + b],
        "domain": "both",
        "depth": 2,
    }
    for a in (1, 3)
    for b in (1, 2)
]
LEARN = [
    *(
        {"id": f"c{a}{b}", "question": f"add {a} {b}", "answer": str(a + b), "domain": "add"}
        for a in range(6)
        for b in (3, 4)
    ),
    *(
        {"id": f"d{n}", "question": f"spell {n}", "answer": toys.WORDS[n], "domain": "spell"}
        for n in (0, 1, 2, 3, 6, 7, 8, 9)
    ),
]
HEAD = """
seed = 0
cache = "{folder}/replies.sqlite"

[tasks.toys]
task = "jsonl:{folder}/test.jsonl"

[calibration]
task = "jsonl:{folder}/learn.jsonl"

[pools.toys.workers]
adder = {{ model = "toy:adder", sampling = {{ temperature = 0 }}, strengths = "adds" }}
speller = {{ model = "toy:speller", sampling = {{ temperature = 0 }}, strengths = "spells" }}
"""

Run = Callable[..., list[TaskResult]]


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(PROVIDERS, "toy", "training.bench.toys:toy")
    toys.MADE.clear()
    yield
    toys.MADE.clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the toys' questions."""
    for name, rows in (("test", [*ADD, *SPELL, *BOTH]), ("learn", LEARN)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return tmp_path


@pytest.fixture
def bench(folder: Path) -> Callable[..., Bench]:
    """Makes a bench of the toys with these systems."""

    def make(systems: str, **options: object) -> Bench:
        file = folder / "bench.toml"
        extra = "".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items())
        file.write_text(extra + HEAD.format(folder=folder) + systems, encoding="utf-8")
        return Bench(read_settings(file), ResultFile(folder / "out" / "rows.jsonl"))

    return make
