"""Checks of guardrails in a trace."""

from __future__ import annotations

import pytest

from core.scripted_guardrails import SECRET, Check, Hide, always, guarded_conductor
from rl_conductor.errors import GuardrailError, RefusedError
from rl_conductor.guardrails import Refuse
from rl_conductor.trace.checks import CheckOutcome, GuardrailCheck
from rl_conductor.trace.summary import Summary
from rl_conductor.trace.trace import Trace


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("allowed", "the guardrail 'pii' allowed the reply: why"),
        ("redacted", "the guardrail 'pii' redacted the reply: why"),
        ("failed", "the guardrail 'pii' could not check the reply: why"),
        ("failed_open", "the guardrail 'pii' could not check, and let pass, the reply: why"),
    ],
)
def test_a_check_reads_as_a_sentence(outcome: CheckOutcome, words: str) -> None:
    check = GuardrailCheck(guardrail="pii", stage="reply", outcome=outcome, reason="why")
    assert check.in_words == words
    assert check.is_blocking == (outcome == "failed")
    assert check.model_copy(update={"reason": ""}).in_words == words.removesuffix(": why")
    assert str(GuardrailError(check)) == words


async def test_a_trace_lists_its_checks_and_survives_json_with_them() -> None:
    trace = await guarded_conductor(Hide(stages=("input", "answer"))).run(f"call {SECRET}")
    assert [(check.stage, check.worker) for check in trace.checks] == [("input", None), ("answer", "b")]
    assert Trace.model_validate_json(trace.model_dump_json()) == trace
    assert trace.refusal is None
    assert [step.checks for step in Summary.of(trace).rounds[0].steps] == [(), trace.rounds[0].results[1].checks]


async def test_the_refusal_of_a_run_is_that_of_its_request_or_answer() -> None:
    with pytest.raises(RefusedError) as caught:
        await guarded_conductor(Check(stages=("answer",), verdict=always(Refuse("rude")))).run("q")
    refusal = caught.value.trace.refusal
    assert refusal is not None
    assert (refusal.stage, refusal.worker, refusal.reason) == ("answer", "b", caught.value.reason)
    assert caught.value.trace.error == "the guardrail 'check' refused the answer: rude"


async def test_calls_of_guardrails_are_told_apart_by_their_worker() -> None:
    trace = await guarded_conductor().run("q")
    call = trace.rounds[0].results[0].calls[0]
    assert not call.is_check
    assert not call.model_copy(update={"worker": None}).is_check
    assert call.model_copy(update={"worker": "guardrail:pii"}).is_check
