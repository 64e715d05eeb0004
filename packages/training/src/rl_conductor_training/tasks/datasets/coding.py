"""LiveCodeBench and BigCodeBench, scored in the sandbox by their tests and by the rules of their own graders."""

from __future__ import annotations

import base64
import io
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

from rl_conductor.scoring import Sample, Split, Task
from rl_conductor_training.tasks.datasets.loading import DataRow, HubDataset, build_task
from rl_conductor_training.tasks.scorers.programs import passes_tests

ASK = "{problem}\n\nReply with the whole Python program in one ```python block."
ASK_STDIN = "It reads standard input and writes standard output."
ASK_STARTER = "Complete this code:\n```python\n{starter}\n```"
MAX_UNPACKED_BYTES = 2**29
"""Size limit of the decompressed private tests of a problem."""

STAR_MODULES = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing"),
)
"""Modules of which LiveCodeBench imports every name; later ones replace names of earlier ones."""
MODULES = tuple(name for name in STAR_MODULES if name not in ("builtins", "typing"))
LIVECODEBENCH_HEADER = "".join(
    (
        *(f"from {name} import *\n" for name in STAR_MODULES),
        f"import {', '.join(MODULES)}\n",
        "sys.setrecursionlimit(50000)\n",
    )
)
"""The beginning of every program, as in LiveCodeBench's own `testing_util.py`."""
LIVECODEBENCH_LIMITS = {"seconds": 6.0, "memory": 4 * 2**30}
"""Seconds per test and bytes; the official command's default and comment."""

BIGCODEBENCH_HEADER = """\
import os, sys, time
from os import environ
environ["TZ"] = "UTC"
time.tzset()
__name__ = "__test__"
"""
"""The module in which BigCodeBench runs solution and tests; it is not the main one."""
BIGCODEBENCH_LIMITS = {"seconds": 240.0, "memory": 30 * 2**30, "file_bytes": 2**28}
"""Seconds for all tests of a problem, and bytes, as in its `eval/utils.py` and `evaluate.py`."""
RUN_TEST_CASES = """
import unittest
_result = unittest.TestResult()
unittest.defaultTestLoader.loadTestsFromTestCase(TestCases).run(_result)
_problems = _result.failures + _result.errors
assert _result.testsRun and not _problems, _problems[0][1] if _problems else "there are no tests"
"""


def livecodebench(
    path: str | Path | None = None, *, split: Split | None = None, release: tuple[str, ...] = ("test6.jsonl",)
) -> Task:
    """Loads LiveCodeBench, problems of programming contests.

    Args:
        path: a local file to read instead of the hub.
        split: keep one split only, assigned by a hash of the sample ids.
        release: files of the hub, from `test.jsonl` (v1) to `test6.jsonl`.
    """
    data = HubDataset("livecodebench/code_generation_lite", files=release)
    return build_task("livecodebench", data, _livecodebench_sample, passes_tests, path=path, split=split)


def bigcodebench(path: str | Path | None = None, *, split: Split | None = None, part: str = "v0.1.4") -> Task:
    """Loads BigCodeBench hard, the completion variant, calibrated as in its leaderboard.

    The tests need the libraries that they use to be installed. The sandbox denies them the network and other programs,
    so problems whose tests start programs fail here.

    Args:
        path: a local file to read instead of the hub.
        split: keep one split only, assigned by a hash of the sample ids.
        part: the hub's own split, which is the version.
    """
    data = HubDataset("bigcode/bigcodebench-hard", split=part)
    return build_task("bigcodebench", data, _bigcodebench_sample, passes_tests, path=path, split=split)


def _livecodebench_sample(row: DataRow, _: int) -> Sample:
    starter = row.get("starter_code") or ""
    instructions = ASK_STARTER.format(starter=starter) if starter else ASK_STDIN
    cases = [*json.loads(row["public_test_cases"]), *_decode_private_tests(row["private_test_cases"])]
    name = json.loads(row.get("metadata") or "{}").get("func_name")
    details: dict[str, Any] = {"cases": [{"stdin": case["input"], "stdout": case["output"]} for case in cases]}
    if starter:
        details["call"] = name or _raise_missing_key("func_name")
    return Sample(
        id=str(row["question_id"]),
        question=ASK.format(problem=f"{row['question_content']}\n\n{instructions}"),
        domain="code",
        details=details | {"before": LIVECODEBENCH_HEADER, "fenced": True, "limits": LIVECODEBENCH_LIMITS},
    )


def _bigcodebench_sample(row: DataRow, _: int) -> Sample:
    question = ASK.format(problem=row["complete_prompt"])
    prompt_code = row.get("code_prompt") or ""
    calibration = f"{prompt_code}\n    pass\n" if prompt_code else ""
    details = {
        "before": BIGCODEBENCH_HEADER + calibration,
        "tests": row["test"] + RUN_TEST_CASES,
        "limits": BIGCODEBENCH_LIMITS,
    }
    return Sample(id=row["task_id"], question=question, domain="code", details=details)


def _raise_missing_key(key: str) -> str:
    raise KeyError(key)


class _StringUnpickler(pickle.Unpickler):
    """Unpickles strings and rejects everything that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"its private tests name {module}.{name}, which no plain text does")


def _decode_private_tests(encoded: str) -> list[dict[str, str]]:
    """Decodes LiveCodeBench's private tests: JSON, or JSON that was pickled, compressed and base64-encoded."""
    try:
        cases = json.loads(encoded)
    except ValueError:
        decompressor = zlib.decompressobj()
        text = _StringUnpickler(
            io.BytesIO(decompressor.decompress(base64.b64decode(encoded), MAX_UNPACKED_BYTES))
        ).load()
        cases = json.loads(text)
    return list(cases)
