"""The PII guardrail, with the real Presidio."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from presidio_anonymizer.entities import OperatorConfig

from core.runs import plan, pool_of
from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConfigError, GuardrailError
from rl_conductor.guardrails import check_messages
from rl_conductor.guardrails.presidio import PresidioGuardrail
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.types import FilePart, ImagePart, Message, Request

LEAKS = (
    ("write to alice@example.com", "write to <EMAIL_ADDRESS>"),
    ("pay with 4111 1111 1111 1111", "pay with <CREDIT_CARD>"),
    ("IBAN DE89370400440532013000", "IBAN <IBAN_CODE>"),
    ("call +1 415-555-2671 now", "call <PHONE_NUMBER> now"),
    ("ping 192.168.17.4", "ping <IP_ADDRESS>"),
)


async def redact(text: str, **options: Any) -> str:
    return (await check_messages([PresidioGuardrail(**options)], "input", [Message.user(text)]))[0].text


async def test_personal_data_is_replaced_by_its_kind_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("no name may be looked up")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for text, redacted in LEAKS:
        assert await redact(text) == redacted


@pytest.mark.parametrize("text", ["The answer is 42.", "See https://example.com/x", "def f(x): return x ** 2", ""])
async def test_other_text_stays_as_it_is(text: str) -> None:
    assert await redact(text) == text


async def test_personal_data_may_be_refused_masked_or_chosen_by_kind() -> None:
    with pytest.raises(GuardrailError, match="refused the input: found EMAIL_ADDRESS"):
        await redact("alice@example.com", action="refuse")
    mask = OperatorConfig("mask", {"masking_char": "*", "chars_to_mask": 12, "from_end": False})
    assert await redact("4111111111111111", operators={"CREDIT_CARD": mask}) == "************1111"
    assert await redact("alice@example.com, 192.168.17.4", entities=["IP_ADDRESS"]) == "alice@example.com, <IP_ADDRESS>"


@pytest.mark.parametrize("part", [ImagePart(data="aGk="), FilePart(data="aGk=")])
async def test_attachments_pass_or_are_refused(part: Any) -> None:
    messages = [Message.user("look", part)]
    assert await check_messages([PresidioGuardrail()], "input", messages) == messages
    with pytest.raises(GuardrailError, match="images and files can't be checked"):
        await check_messages([PresidioGuardrail(attachments="refuse")], "input", messages)


async def test_a_nonce_that_looks_like_a_bank_account_stays_a_nonce() -> None:
    prompt = '<reply step="1" mark="1234567890123456">\nmail bob@example.com\n</reply mark="1234567890123456">'
    pii = PresidioGuardrail(entities=["US_BANK_NUMBER", "EMAIL_ADDRESS"], threshold=0.0)
    assert pii._check([prompt]).texts != (prompt,)  # type: ignore[union-attr]
    redacted = await check_messages([pii], "input", [Message.user(prompt)])
    assert redacted[0].text == prompt.replace("bob@example.com", "<EMAIL_ADDRESS>")


async def test_an_earlier_turn_is_redacted_for_the_planner_and_every_worker() -> None:
    turns = (Message.user("I am alice@example.com"), Message.assistant("Hello!"), Message.user("Who am I?"))
    made = Conductor(
        ScriptedModel(plan((0, "say it", []))), pool_of(a="you are alice@example.com"), guardrails=[PresidioGuardrail()]
    )
    trace = await made.run(Request(messages=turns))
    assert trace.text == "you are <EMAIL_ADDRESS>"
    assert "alice@example.com" not in trace.model_dump_json()
    sent = made.planner.model.requests + made.pool["a"].model.requests  # type: ignore[attr-defined]
    assert not any("alice@example.com" in request.model_dump_json() for request in sent)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"entities": ["PERSON"]}, "entities has PERSON, which the analyzer does not find"),
        ({"action": "hide"}, "write 'redact' or 'refuse'"),
        ({"attachments": "hide"}, "write 'allow' or 'refuse'"),
    ],
)
def test_a_wrong_setting_says_what_to_write(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        PresidioGuardrail(**options)
