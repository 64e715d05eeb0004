"""`ChatConductor()` on a machine that has nothing: real small models plan and work in this process."""

from __future__ import annotations

import pytest

from langchain_conductor import ChatConductor
from rl_conductor import Limits, Policy
from rl_conductor.config.discovery import POOL_VARIABLE, VENDORS
from rl_conductor.models.endpoints import ENDPOINTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CONFIGURED = [POOL_VARIABLE, "OPENAI_BASE_URL", *(key for name in VENDORS for key in ENDPOINTS[name].key_variables)]


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> ChatConductor:
    for name in CONFIGURED:
        monkeypatch.delenv(name, raising=False)
    # Without the profile's deadline: on a busy machine, planning would take more than its share of it.
    return ChatConductor(model="mini", limits=Limits(steps=2), max_tokens=40, temperature=0, seed=1)


def test_tiny_models_plan_and_answer(chat: ChatConductor) -> None:
    reply = chat.invoke("How many days has a week? Answer with a number.")
    assert "7" in reply.text or "seven" in reply.text.lower()
    metadata = reply.response_metadata["conductor"]
    assert metadata["planner"].startswith("embedded:")
    assert metadata["planning"]["output_tokens"] > 0
    assert reply.usage_metadata is not None
    assert reply.usage_metadata["input_tokens"] > metadata["planning"]["input_tokens"]


async def test_a_tiny_model_streams_its_own_tokens(chat: ChatConductor) -> None:
    chunks = [chunk async for chunk in chat.astream("Count from one to five.", policy=Policy(single="coder"))]
    assert len([chunk for chunk in chunks if chunk.text]) > 3
    assert [bool(chunk.usage_metadata) for chunk in chunks].count(True) == 1


def test_a_tiny_model_fills_in_a_form(chat: ChatConductor) -> None:
    schema = {"title": "place", "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    structured_chat = chat.with_structured_output(schema, policy=Policy(single="coder"))
    assert "Paris" in structured_chat.invoke("What is the capital of France?")["city"]


def test_a_tiny_model_obeys_stop_sequences(chat: ChatConductor) -> None:
    reply = chat.invoke("Count: one two three four five.", stop=["three"], policy=Policy(single="coder"))
    assert "three" not in reply.text
