"""The scorer of programs: runs the program of a reply in the sandbox against all tests (pass@1).

Tests with inputs and outputs are compared outside of the sandbox, so the program never sees the expected output. Tests
written as code share the program's process: it passes when it reaches their end and prints a random token, so exiting
early does not pass; a program that searches its own process for the token can still forge it.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from rl_conductor.scoring import Sample, Score, wrong
from rl_conductor_training.sandbox.sandbox import ProgramResult, ResourceLimits, extract_program, run_python

MEMORY = 2**30
TOTAL_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
RUN = """
try:
    exec(compile({program!r}, "answer.py", "exec"))
except SystemExit:
    pass
"""
"""Runs a program that may end itself with any exit code."""
CALL = """
import json as _json, sys as _sys
_lines = [_json.loads(_line) for _line in _sys.stdin.read().splitlines() if _line.strip()]
_result = (Solution().{name} if "Solution" in globals() else {name})(*_lines)

def _lists(_value, _is_top=True):
    if isinstance(_value, tuple) and not _is_top:
        raise TypeError("a tuple inside of the result is not equal to a list")
    if isinstance(_value, (list, tuple)):
        return [_lists(_item, False) for _item in _value]
    if isinstance(_value, dict):
        if not all(isinstance(_key, str) for _key in _value):
            raise TypeError("the keys of a result are not all strings")
        return {{_key: _lists(_item, False) for _key, _item in _value.items()}}
    return _value.item() if hasattr(_value, "item") else _value

print({token!r} + _json.dumps(_lists(_result)))
"""
"""Calls a function with the lines of standard input; a tuple as its result counts as a list, inside of it not."""


async def passes_tests(sample: Sample, text: str) -> Score:
    """Runs the program in the reply against `details`.

    Its keys are `tests` (Python code), or `cases` of `stdin` and `stdout` and the function to `call` with them, if any;
    further `before` (code before the program), `limits` (of each run), and `fenced` (whether the program must stand
    between two lines with three backticks, as LiveCodeBench requires).
    """
    details = sample.details
    program = extract_last_fenced(text) if details.get("fenced") else extract_program(text)
    if not program.strip():
        return wrong(None, "the reply has no code block")
    limits = _resource_limits(details.get("limits") or {})
    before = details.get("before", "")
    if "tests" in details:
        return await _run_tests(program, before, details["tests"], limits)
    for number, case in enumerate(details["cases"], start=1):
        problem = await _run_case(f"{before}\n{program}", case, details.get("call"), limits)
        if problem:
            return wrong(program, f"test {number}: {problem}")
    return Score(value=1.0, answer=program, explanation=f"all {len(details['cases'])} tests pass")


def extract_last_fenced(reply: str) -> str:
    """Returns the lines between the last two lines that contain three backticks; empty without two of them."""
    lines = reply.split("\n")
    fences = [number for number, line in enumerate(lines) if "```" in line]
    return "\n".join(lines[fences[-2] + 1 : fences[-1]]) if len(fences) >= 2 else ""


def _resource_limits(limits: Mapping[str, float]) -> ResourceLimits:
    """Builds the limits of one run, within this machine's memory."""
    values = {"seconds": 10.0, "memory": MEMORY, **limits}
    return ResourceLimits.model_validate({**values, "memory": min(int(values["memory"]), TOTAL_MEMORY)})


async def _run_tests(program: str, before: str, tests: str, limits: ResourceLimits) -> Score:
    token = secrets.token_hex(8)
    result = await run_python(f"{before}\n{program}\n{tests}\nprint({token!r})\n", limits=limits)
    if result.status == "ok" and result.output.rstrip().endswith(token):
        return Score(value=1.0, answer=program, explanation="all tests pass")
    return wrong(program, describe_failure(result) or "it ended before the tests did")


async def _run_case(program: str, case: dict[str, str], call: str | None, limits: ResourceLimits) -> str:
    """Returns the reason why the program fails a test case; empty when it passes."""
    if call is None:
        result = await run_python(RUN.format(program=program), stdin=case["stdin"], limits=limits)
        output = result.output
        is_right = outputs_match(output, case["stdout"])
    else:
        token = secrets.token_hex(8)
        program += CALL.format(name=call, token=token)
        result = await run_python(program, stdin=case["stdin"], limits=limits)
        output = result.output.rpartition(token)[2]
        is_right = _parse_json(output) == (json.loads(case["stdout"]),)
    return describe_failure(result) or (
        "" if is_right else f"it gave {output.strip()[:200]!r} and not {case['stdout'].strip()[:200]!r}"
    )


def outputs_match(output: str, expected: str) -> bool:
    """Whether two outputs have the same lines, up to blanks at their ends or in the notation of numbers.

    It is the rule of LiveCodeBench's `testing_util.py`: lines of numbers are compared as decimals, without a tolerance.
    """
    lines, expected_lines = (text.strip().split("\n") for text in (output, expected))
    return len(lines) == len(expected_lines) and all(map(_lines_match, lines, expected_lines))


def _lines_match(line: str, expected: str) -> bool:
    if line.strip() == expected.strip():
        return True
    try:
        return [Decimal(word) for word in line.split()] == [Decimal(word) for word in expected.split()]
    except InvalidOperation:
        return False


def _parse_json(text: str) -> tuple[Any, ...]:
    """Parses JSON; returns a tuple of the value, empty when the text is invalid."""
    try:
        return (json.loads(text),)
    except (ValueError, RecursionError):
        return ()


def describe_failure(result: ProgramResult) -> str:
    """Describes in one line why a program did not end well; empty when it did."""
    if result.status == "timeout":
        return f"it was still running after {result.seconds:.0f} seconds"
    if result.status == "failed":
        return (result.error.strip().splitlines() or ["it was stopped"])[-1]
    return ""
