"""The command line names what guardrails did, each once."""

from __future__ import annotations

import pytest

from core.scripted_guardrails import SECRET, Check, Hide, always, guarded_conductor
from rl_conductor.cli.output.report import problems
from rl_conductor.errors import RefusedError
from rl_conductor.guardrails import Content, Refuse, Verdict


async def boom(_: Content) -> Verdict:
    raise OSError("disk full")


async def test_redactions_and_ignored_failures_are_named() -> None:
    checks = Hide(stages=("input", "answer")), Check(stages=("answer",), verdict=boom, fail_open=True)
    trace = await guarded_conductor(*checks).run(f"call {SECRET}")
    assert [line.plain for line in problems(trace)] == [
        "! the guardrail 'hide' redacted the input: a phone number",
        "! step 2: the guardrail 'hide' redacted the answer: a phone number",
        "! step 2: the guardrail 'check' could not check, and let pass, the answer: OSError: disk full",
    ]


@pytest.mark.parametrize(("stage", "where"), [("input", ""), ("answer", "step 2: ")])
async def test_a_refusal_is_named_once(stage: str, where: str) -> None:
    guardrail = Check(stages=[stage], verdict=always(Refuse("rude")))  # type: ignore[list-item]
    with pytest.raises(RefusedError) as caught:
        await guarded_conductor(guardrail).run("q")
    lines = [line.plain for line in problems(caught.value.trace)]
    assert lines == [f"! {where}the guardrail 'check' refused the {stage}: rude"]
