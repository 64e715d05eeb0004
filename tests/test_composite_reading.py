"""`benchmarks/composite_reading.py` on plans and rows worked out by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rl_conductor._internal.jsonl import write_lines, write_value
from rl_conductor_training.bench.results import ResultKey, SampleResult
from rl_conductor_training.tasks.composite.questions import composite
from rl_conductor_training.train.config import TrainConfig

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "composite_reading.py"
LEAST = {"model": "m", "task": {"name": "composite:train", "options": {"size": 3}}, "pool": {"small": {}}}


def told(*arguments: str | Path) -> list[list[str]]:
    """The cells of what the script prints."""
    run = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, check=True, encoding="utf-8")
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in run.stdout.splitlines() if "│" in line]


def test_plans_are_counted_by_steps_and_compared_question_by_question(tmp_path: Path) -> None:
    write_value(tmp_path / "config.json", TrainConfig.model_validate(LEAST))
    look_up, calculate, write = (sample.question for sample in composite("train", size=3).samples)
    (tmp_path / "plans").mkdir()
    drawn = {
        1: [(look_up, ["writer"], 0.0), (calculate, ["coder"], 1.0), (write, ["reader", "coder"], 0.0)],
        2: [(look_up, ["reader"], 1.0), (calculate, ["reader", "coder"], 1.0), (write, ["reader", "writer"], 1.0)],
    }
    for step, plans in drawn.items():
        lines = [
            {
                "question": question,
                "score": score,
                "workflow": {"steps": [{"subtask": "x", "worker": w} for w in workers]},
            }
            for question, workers, score in plans
        ]
        (tmp_path / "plans" / f"{step:05}.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert told(tmp_path, "--every", "1") == [
        ["steps 1 to 1", "3", "0.33", "", "0.50", "0.00", "1.00, 0.50", "0.00, 0.50", "1.3"],
        [
            "steps 2 to 2",
            "3",
            "1.00",
            "+0.667 ± 0.333, 2 up, 0 down",
            "1.00",
            "1.00",
            "1.00, 0.00",
            "1.00, 0.00",
            "1.7",
        ],
    ]


def test_rows_of_a_bench_are_counted_by_system(tmp_path: Path) -> None:
    def row(sample: str, domain: str, system: str, value: float, *workers: str) -> SampleResult:
        key = ResultKey(pool="small", task="heldout", system=system, sample=sample, repeat=0, settings="")
        return SampleResult(key=key, domain=domain, value=value, workers=workers)

    write_lines(
        tmp_path / "rows.jsonl",
        [
            row("a", "lookup", "before", 0.0, "writer"),
            row("b", "compute+write", "before", 0.0, "coder"),
            row("a", "lookup", "after", 1.0, "reader"),
            row("b", "compute+write", "after", 0.0, "coder", "writer"),
        ],
    )
    assert told(tmp_path / "rows.jsonl") == [
        ["small, heldout, before", "2", "0.00", "", "0.00", "0.00", "1.00, 0.00", "0.00, 1.00", "1.0"],
        [
            "small, heldout, after",
            "2",
            "0.50",
            "+0.500 ± 0.500, 1 up, 0 down",
            "1.00",
            "0.00",
            "1.00, 0.00",
            "1.00, 0.00",
            "1.5",
        ],
    ]
