"""The scorer of programs: runs the program of a reply in the sandbox against all tests (pass@1).

Tests with inputs and outputs are compared outside of the sandbox, so the program never sees the expected output. Tests
written as code share the program's process: it passes when it reaches their end and prints a random token, so exiting
early does not pass; a program that searches its own process for the token can still forge it.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

from rl_conductor.scoring import Sample, Score, wrong
from rl_conductor_training.sandbox.sandbox import ProgramResult, ResourceLimits, extract_program, run_python

LIMITS = ResourceLimits(seconds=10.0, memory=2**30)
CALL = """
import json as _json, sys as _sys
_lines = [_json.loads(_line) for _line in _sys.stdin.read().splitlines() if _line.strip()]
_result = (Solution().{name} if "Solution" in globals() else {name})(*_lines)
print({token!r} + _json.dumps(_result))
"""


async def passes_tests(sample: Sample, text: str) -> Score:
    """Runs the program in the reply against `details`.

    Its keys are `tests` (Python code), or `cases` of `stdin` and `stdout` and the function to `call` with them, if any.
    """
    program = sample.details.get("before", "") + extract_program(text)
    if "tests" in sample.details:
        return await _run_tests(program, sample.details["tests"])
    for number, case in enumerate(sample.details["cases"], start=1):
        problem = await _run_case(program, case, sample.details.get("call"))
        if problem:
            return wrong(program, f"test {number}: {problem}")
    return Score(value=1.0, answer=program, explanation=f"all {len(sample.details['cases'])} tests pass")


async def _run_tests(program: str, tests: str) -> Score:
    token = secrets.token_hex(8)
    result = await run_python(f"{program}\n{tests}\nprint({token!r})\n", limits=LIMITS)
    if result.status == "ok" and result.output.rstrip().endswith(token):
        return Score(value=1.0, answer=program, explanation="all tests pass")
    return wrong(program, describe_failure(result) or "it ended before the tests did")


async def _run_case(program: str, case: dict[str, str], call: str | None) -> str:
    """Returns the reason why the program fails a test case; empty when it passes."""
    if call is None:
        result = await run_python(program, stdin=case["stdin"], limits=LIMITS)
        output = result.output
        is_right = [line.split() for line in output.strip().splitlines()] == [
            line.split() for line in case["stdout"].strip().splitlines()
        ]
    else:
        token = secrets.token_hex(8)
        program += CALL.format(name=call, token=token)
        result = await run_python(program, stdin=case["stdin"], limits=LIMITS)
        output = result.output.rpartition(token)[2]
        is_right = _parse_json(output) == (json.loads(case["stdout"]),)
    return describe_failure(result) or (
        "" if is_right else f"it gave {output.strip()[:200]!r} and not {case['stdout'].strip()[:200]!r}"
    )


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
