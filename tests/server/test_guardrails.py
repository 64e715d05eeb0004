"""Guardrails behind the server: refusals in each vendor's format, and what the store keeps."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from core.scripted_guardrails import HIDDEN, SECRET, Check, Hide, always
from rl_conductor.errors import ConfigError
from rl_conductor.execution.guarding import WITHHELD
from rl_conductor.guardrails import Allow, Content, Refuse, Verdict
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor_server.cli.server_options import discover_pool
from rl_conductor_server.settings import Settings, read_settings
from server.conftest import Serve, until

QUESTION: list[Any] = [{"role": "user", "content": f"call {SECRET}"}]
CHAT: Any = {"model": "conductor-mini", "messages": QUESTION}
MESSAGES: Any = CHAT | {"max_tokens": 100}


def refusing(stage: Any, **options: Any) -> Check:
    return Check(stages=(stage,), verdict=always(Refuse("rude")), **options)


def stored_bytes(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


def questions(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "runs.db")) as connection:
        return [row[0] for row in connection.execute("select question from runs")]


async def test_a_refused_request_gets_the_vendors_error_and_leaves_no_text(serve: Serve, tmp_path: Path) -> None:
    at = await serve(guardrails=(refusing("input"),))
    with pytest.raises(openai.BadRequestError) as caught:
        await at.openai().chat.completions.create(**CHAT)
    assert (caught.value.code, caught.value.body["message"]) == (  # type: ignore[index]
        "content_policy_violation",
        "the request was refused: rude",
    )
    with pytest.raises(openai.BadRequestError) as caught:
        await at.openai().responses.create(model="conductor-mini", input=f"call {SECRET}")
    assert caught.value.code == "content_policy_violation"
    await at.service.store.write_queue.flush()
    assert questions(tmp_path) == [WITHHELD] * 2
    run = caught.value.response.headers["x-conductor-run"]
    assert "the guardrail 'check' refused the input: rude" in (await at.http.get(f"/runs/{run}")).text.replace(
        "&#39;", "'"
    )
    assert SECRET.encode() not in stored_bytes(tmp_path)


async def test_a_checked_response_is_stored_only_as_it_was_sent(serve: Serve, tmp_path: Path) -> None:
    allowing = Check(stages=("input",), verdict=always(Allow()))
    redacting = Hide(stages=("input",))
    kept = []
    for guardrail in (allowing, redacting):
        at = await serve(guardrails=(guardrail,))
        client = at.openai()
        text = "call me" if guardrail is allowing else f"call {SECRET}"
        made = await client.responses.create(model="conductor-mini", input=text)
        kept.append(await at.service.store.responses.get(f"run-{made.id.removeprefix('resp_')}", key="local"))
        with pytest.raises(openai.BadRequestError, match="background can't be combined with the guardrails"):
            await client.responses.create(model="conductor-mini", input=text, background=True)
    assert [stored is not None for stored in kept] == [True, False]
    assert SECRET.encode() not in stored_bytes(tmp_path)


async def test_a_refused_stream_has_the_status_of_a_refused_request(serve: Serve) -> None:
    at = await serve(guardrails=(refusing("input"),))
    with pytest.raises(openai.BadRequestError) as caught:
        await at.openai().chat.completions.create(**CHAT, stream=True)
    assert caught.value.code == "content_policy_violation"


@pytest.mark.parametrize("stage", ["input", "answer"])
async def test_anthropics_clients_get_the_stop_reason_refusal(serve: Serve, stage: str) -> None:
    at = await serve(guardrails=(refusing(stage),))
    reply = await at.anthropic().messages.create(**MESSAGES)
    assert (reply.stop_reason, reply.content) == ("refusal", [])
    async with at.anthropic().messages.stream(**MESSAGES) as stream:
        final = await stream.get_final_message()
    assert (final.stop_reason, final.content) == ("refusal", [])
    assert isinstance(final, anthropic.types.Message)


async def test_a_refused_answer_is_reported_as_filtered_and_not_streamed(serve: Serve) -> None:
    at = await serve({"a": f"it is {SECRET}"}, guardrails=(refusing("answer"),))
    client = at.openai()
    reply = await client.chat.completions.create(**CHAT)
    assert (reply.choices[0].finish_reason, reply.choices[0].message.content) == ("content_filter", None)
    assert reply.usage is not None
    assert reply.usage.completion_tokens > 0
    steps = (reply.model_extra or {})["conductor"]["rounds"][0]["steps"]
    assert [(check["outcome"], check["reason"]) for check in steps[0]["checks"]] == [("refused", "rude")]
    chunks = [chunk async for chunk in await client.chat.completions.create(**CHAT, stream=True)]
    assert not any(choice.delta.content for chunk in chunks for choice in chunk.choices)
    assert chunks[-1].choices[0].finish_reason == "content_filter"
    response = await client.responses.create(model="conductor-mini", input="hello")
    assert response.incomplete_details is not None
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "content_filter")


async def test_a_repeated_request_gets_the_same_refusal_without_another_run(serve: Serve) -> None:
    worker = ScriptedModel("it is rude")
    at = await serve({"a": worker}, guardrails=(refusing("answer"),))
    headers = {"idempotency-key": "once"}
    replies = [await at.openai().chat.completions.create(**CHAT, extra_headers=headers) for _ in range(2)]
    assert [reply.choices[0].finish_reason for reply in replies] == ["content_filter"] * 2
    assert len(worker.requests) == 1


async def test_the_store_gets_the_redacted_question_only(serve: Serve, tmp_path: Path) -> None:
    at = await serve({"a": f"it is {SECRET}"}, guardrails=(Hide(),))
    for headers in ({}, {"idempotency-key": "once"}):
        reply = await at.openai().chat.completions.create(**CHAT, extra_headers=headers)
        assert reply.choices[0].message.content == f"it is {HIDDEN}"
    await at.service.store.write_queue.flush()
    assert questions(tmp_path) == [f"call {HIDDEN}"] * 2
    assert SECRET.encode() not in stored_bytes(tmp_path)


async def test_the_question_is_not_stored_while_guardrails_check_it(serve: Serve, tmp_path: Path) -> None:
    stored: list[bytes] = []

    async def look(_: Content) -> Verdict:
        await at.service.store.write_queue.flush()
        stored.append(stored_bytes(tmp_path))
        return Allow()

    at = await serve(guardrails=(Check(stages=("input",), verdict=look),))
    await at.openai().chat.completions.create(**CHAT, extra_headers={"idempotency-key": "once"})
    assert stored
    assert not any(SECRET.encode() in content for content in stored)


async def test_store_false_keeps_no_checks_and_no_text(serve: Serve, tmp_path: Path) -> None:
    at = await serve({"a": f"it is {SECRET}"}, guardrails=(Hide(),))
    reply = await at.openai().chat.completions.create(**CHAT, store=False)
    await at.service.store.write_queue.flush()
    assert reply.choices[0].message.content == f"it is {HIDDEN}"
    assert HIDDEN.encode() not in stored_bytes(tmp_path)


async def test_an_answer_is_buffered_until_it_has_passed(serve: Serve) -> None:
    at = await serve({"a": f"it is {SECRET} indeed"}, guardrails=(Hide(stages=("answer",)),))
    chunks = [chunk async for chunk in await at.openai().chat.completions.create(**CHAT, stream=True)]
    texts = [choice.delta.content for chunk in chunks for choice in chunk.choices if choice.delta.content]
    assert texts == [f"it is {HIDDEN} indeed"]


async def test_a_guardrail_that_fails_is_an_error_of_the_server(serve: Serve) -> None:
    async def boom(_: Content) -> Verdict:
        raise OSError("no route")

    at = await serve(guardrails=(Check(stages=("input",), verdict=boom),))
    with pytest.raises(openai.InternalServerError) as caught:
        await at.openai().chat.completions.create(**CHAT)
    assert (caught.value.status_code, caught.value.code) == (502, "guardrail_failed")


async def test_both_arms_of_an_experiment_have_the_guardrails(serve: Serve) -> None:
    entry = {"released": "2026-11-22", "baseline": "embedded:smollm2-135m", "conductor": "conductor-mini"}
    guard = Hide()
    at = await serve(guardrails=(guard,), experiments={"house": entry})
    experiment = at.service.experiments["house"]
    arms = (experiment.baseline, experiment.conductor)
    assert [arm.conductor.config.guardrails for arm in arms] == [(guard,), (guard,)]


def test_guardrails_stand_in_the_pool_file_and_in_the_settings(tmp_path: Path) -> None:
    (tmp_path / "pool.toml").write_text(
        '[workers.a]\nmodel = "ollama:a"\n[[guardrails]]\ntype = "presidio"\n', encoding="utf-8"
    )
    (tmp_path / "server.toml").write_text(
        'pool = "pool.toml"\n[[guardrails]]\ntype = "groundedness"\nname = "facts"\nfail_open = true\ntimeout = 5\n'
        'options = { checker = "a", on_doubt = "replace" }\n',
        encoding="utf-8",
    )
    found = discover_pool(read_settings(tmp_path / "server.toml"))
    names = [(guard.name, sorted(guard.stages), guard.fail_open, guard.timeout) for guard in found.guardrails]
    assert names == [("pii", ["answer", "input", "reply"], False, 30.0), ("facts", ["answer"], True, 5.0)]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"type": "pii"}, "write 'presidio', 'openai-moderation', 'groundedness' or 'module:Class'"),
        ({"type": "presidio", "options": {"colour": "red"}}, "invalid options"),
        ({"type": "openai-moderation", "options": {"api_key": "sk-1"}}, "set it in the environment"),
        ({"type": "builtins:dict"}, "is not a subclass of rl_conductor.guardrails.Guardrail"),
        ({"type": "groundedness"}, "invalid options: .*checker"),
    ],
)
def test_a_wrong_entry_says_what_to_write(entry: dict[str, Any], reason: str) -> None:
    settings = Settings.model_validate({"workers": {"a": {"model": "ollama:a"}}, "guardrails": [entry]})
    with pytest.raises(ConfigError, match=reason):
        discover_pool(settings)


async def test_a_refused_answer_is_not_compared_by_shadow_runs(serve: Serve) -> None:
    offered: list[object] = []
    at = await serve(guardrails=(refusing("answer"),))
    at.service.runs._on_answer = lambda request, trace: offered.append(request)
    await at.openai().chat.completions.create(**CHAT)
    await until(lambda: not list(at.service.active_runs))
    assert not offered
