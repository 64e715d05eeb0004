"""Guardrails of the LlamaIndex LLM."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core.llms import ChatMessage

from core.runs import plan
from core.scripted_guardrails import HIDDEN, SECRET, Check, Hide, always
from llama_index.llms.conductor import Conductor
from rl_conductor.errors import RefusedError
from rl_conductor.guardrails import Refuse
from rl_conductor.models.scripted import ScriptedModel


def llm(*guardrails: Any) -> Conductor:
    worker = ScriptedModel(lambda _: f"it is {SECRET}", name="a")
    return Conductor({"a": worker}, planner=ScriptedModel(plan((0, "say it", []))), guardrails=guardrails)


async def test_an_llm_redacts_what_goes_in_and_what_comes_out() -> None:
    made = llm(Hide())
    reply = await made.achat([ChatMessage(f"call {SECRET}")])
    assert reply.message.content == f"it is {HIDDEN}"
    assert made.trace is not None
    assert SECRET not in made.trace.model_dump_json()
    assert made.complete(f"call {SECRET}").text == f"it is {HIDDEN}"


async def test_a_refusal_raises() -> None:
    with pytest.raises(RefusedError, match="refused the input: rude"):
        await llm(Check(stages=("input",), verdict=always(Refuse("rude")))).achat([ChatMessage("hello")])
