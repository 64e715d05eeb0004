from __future__ import annotations

import pytest

from rl_conductor import Message, Request, ScriptedModel, model
from rl_conductor.models import PROVIDERS
from rl_conductor.prompting.worker_prompt import Evidence, worker_prompt
from rl_conductor_training.workers.compact import CompactModel
from rl_conductor_training.workers.prompt_template import PromptTemplate
from rl_conductor_training.workers.writer import WriterModel

TASK = "What is 6 times 7? Reply in words."


async def written_by(base: ScriptedModel, prompt: str) -> str:
    reply = await WriterModel(base).complete(Request.user(prompt))
    assert reply.usage.calls == 1
    return reply.text


async def test_the_writer_rewrites_the_last_reply_and_not_the_overall_task() -> None:
    base = ScriptedModel(" forty-two\n")
    evidence = [Evidence("1", "Guess.", "41"), Evidence("2", "Calculate.", "42")]
    assert await written_by(base, worker_prompt(TASK, evidence, "Write it in words.", key="ab")) == "forty-two"
    assert base.requests[0].messages[-1].text == "42\n\nWrite it in words."


async def test_without_a_reply_the_writer_sees_the_overall_task() -> None:
    base = ScriptedModel("forty-two")
    prompt = worker_prompt(TASK, [], "Answer.", key="ab")
    await written_by(base, prompt)
    assert base.requests[0].messages[-1].text == prompt


async def test_the_style_sheet_comes_first_and_includes_the_callers_rules() -> None:
    base = ScriptedModel("HELLO")
    style = PromptTemplate("Write in capitals.", examples=(("hi", "HI"),))
    request = Request(messages=(Message.system("Be polite."), Message.user("hello")))
    await WriterModel(base, style=style).complete(request)
    messages = [(message.role, message.text) for message in base.requests[0].messages]
    assert messages == [
        ("system", "Write in capitals.\n\nBe polite."),
        ("user", "hi"),
        ("assistant", "HI"),
        ("user", "hello"),
    ]


def test_a_model_name_is_accepted() -> None:
    assert model("writer:embedded:smollm2-135m").name == "writer:embedded:smollm2-135m"


def scripted_base(_name: str, *, reply: str) -> ScriptedModel:
    return ScriptedModel(reply)


async def test_a_base_model_by_name_gets_its_options_and_compact_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROVIDERS, "scripted_base", f"{__name__}:scripted_base")
    writer = model("writer:compact:scripted_base:x", base_options={"reply": "FORTY"})
    assert isinstance(writer, WriterModel)
    assert isinstance(writer.base, CompactModel)
    prompt = worker_prompt(TASK, [], "Answer.", key="ab")
    assert (await writer.complete(Request.user(prompt))).text == "FORTY"
