"""LiveCodeBench and BigCodeBench, and how programs in replies are tested: in the sandbox, with all tests (pass@1).

Where a test is an input and an output, the output is compared out here, and the program never sees it. Where tests are
code, they share the program's process: it passes when it comes to their end and tells a word drawn for this run, so
that leaving early does not pass; a program that goes looking for the word can still forge it.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import secrets
import zlib
from pathlib import Path
from typing import Any

from rl_conductor.sandbox import Bounds, Ran, program_in, run_python
from rl_conductor.tasks.base import Sample, Score, Split, Task, wrong
from rl_conductor.tasks.rows import DataRow, HubData, loaded

ASK = "{problem}\n\nReply with the whole Python program in one ```python block."
ASK_STDIN = "It reads standard input and writes standard output."
ASK_STARTER = "Complete this code:\n```python\n{starter}\n```"
MOST_BYTES = 2**29
"""Most that the private tests of a problem may unpack to."""
BOUNDS = Bounds(seconds=10.0, memory=2**30)

IMPORTS = """\
from typing import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from bisect import *
import bisect, collections, functools, heapq, itertools, math, random, re, string, sys
"""
"""What LiveCodeBench's problems take for granted."""
CALL = """
import json as _json, sys as _sys
_lines = [_json.loads(_line) for _line in _sys.stdin.read().splitlines() if _line.strip()]
_result = (Solution().{name} if "Solution" in globals() else {name})(*_lines)
print({word!r} + _json.dumps(_result))
"""
RUN_UNITTEST = "\nimport unittest\n_result = unittest.main(argv=['tests'], exit=False).result\n"
RUN_UNITTEST += "assert _result.testsRun and _result.wasSuccessful(), 'tests failed'\n"


def livecodebench(
    path: str | Path | None = None, *, split: Split | None = None, release: tuple[str, ...] = ("test6.jsonl",)
) -> Task:
    """Problems of programming contests; `release` names the hub's files, from `test.jsonl` (v1) to `test6.jsonl`."""
    data = HubData("livecodebench/code_generation_lite", files=release)
    return loaded("livecodebench", data, _livecodebench, tested, path=path, split=split)


def bigcodebench(path: str | Path | None = None, *, split: Split | None = None, part: str = "v0.1.4") -> Task:
    """BigCodeBench hard, instructed to complete. Its tests need the many libraries that it is about, installed here."""
    data = HubData("bigcode/bigcodebench-hard", split=part)
    return loaded("bigcodebench", data, _bigcodebench, tested, path=path, split=split)


def _livecodebench(row: DataRow, _: int) -> Sample:
    starter = row.get("starter_code") or ""
    about = ASK_STARTER.format(starter=starter) if starter else ASK_STDIN
    cases = [*json.loads(row["public_test_cases"]), *_private(row["private_test_cases"])]
    name = json.loads(row.get("metadata") or "{}").get("func_name")
    details: dict[str, Any] = {"cases": [{"stdin": case["input"], "stdout": case["output"]} for case in cases]}
    if starter:
        details["call"] = name or _missing("func_name")
    return Sample(
        id=str(row["question_id"]),
        question=ASK.format(problem=f"{row['question_content']}\n\n{about}"),
        domain="code",
        details=details | {"before": IMPORTS},
    )


def _bigcodebench(row: DataRow, _: int) -> Sample:
    question = ASK.format(problem=row["complete_prompt"])
    details = {"tests": row["test"] + RUN_UNITTEST}
    return Sample(id=row["task_id"], question=question, domain="code", details=details)


def _missing(key: str) -> str:
    raise KeyError(key)


class _Strings(pickle.Unpickler):
    """Reads pickled text and refuses everything that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"its private tests name {module}.{name}, which no plain text does")


def _private(packed: str) -> list[dict[str, str]]:
    """LiveCodeBench's private tests: JSON, or JSON that was pickled, compressed and written in base 64."""
    try:
        cases = json.loads(packed)
    except ValueError:
        packer = zlib.decompressobj()
        text = _Strings(io.BytesIO(packer.decompress(base64.b64decode(packed), MOST_BYTES))).load()
        cases = json.loads(text)
    return list(cases)


# ---------------------------------------------------------------------------------------- scoring


async def tested(sample: Sample, text: str) -> Score:
    """Run the program in the reply against `details`: `cases` (`stdin`, `stdout`, by `call` if given) or `tests`."""
    program = sample.details.get("before", "") + program_in(text)
    if "tests" in sample.details:
        return await _with_tests(program, sample.details["tests"])
    for number, case in enumerate(sample.details["cases"], start=1):
        problem = await _problem(program, case, sample.details.get("call"))
        if problem:
            return wrong(program, f"test {number}: {problem}")
    return Score(value=1.0, answer=program, explanation=f"all {len(sample.details['cases'])} tests pass")


async def _with_tests(program: str, tests: str) -> Score:
    word = secrets.token_hex(8)
    ran = await run_python(f"{program}\n{tests}\nprint({word!r})\n", bounds=BOUNDS)
    if ran.status == "ok" and ran.output.rstrip().endswith(word):
        return Score(value=1.0, answer=program, explanation="all tests pass")
    return wrong(program, _why(ran) or "it ended before the tests did")


async def _problem(program: str, case: dict[str, str], call: str | None) -> str:
    """Why the program fails a test; empty when it passes."""
    if call is None:
        ran = await run_python(program, stdin=case["stdin"], bounds=BOUNDS)
        said = ran.output
        right = [line.split() for line in said.strip().splitlines()] == [
            line.split() for line in case["stdout"].strip().splitlines()
        ]
    else:
        word = secrets.token_hex(8)
        program += CALL.format(name=call, word=word)
        ran = await run_python(program, stdin=case["stdin"], bounds=BOUNDS)
        said = ran.output.rpartition(word)[2]
        right = _json(said) == (json.loads(case["stdout"]),)
    return _why(ran) or ("" if right else f"it gave {said.strip()[:200]!r} and not {case['stdout'].strip()[:200]!r}")


def _json(text: str) -> tuple[Any, ...]:
    """The value that `text` is as JSON, alone in a tuple; empty when it is none."""
    try:
        return (json.loads(text),)
    except (ValueError, RecursionError):
        return ()


def _why(ran: Ran) -> str:
    if ran.status == "timeout":
        return f"it was still running after {ran.seconds:.0f} seconds"
    if ran.status == "failed":
        return (ran.error.strip().splitlines() or ["it was stopped"])[-1]
    return ""
