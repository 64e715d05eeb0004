"""The Conductor as an LLM: its eight methods, metadata, errors, cancellation and retries."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import SummaryIndex
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ThinkingBlock
from llama_index.core.rate_limiter import TokenBucketRateLimiter
from llama_index.core.tools import FunctionTool

import rl_conductor
from core.capitals import capital_router
from core.pools import TRAINED
from llama_index.llms.conductor import Conductor
from llamaindex.scripts import (
    EchoLLM,
    conductor,
    plan,
    planner,
    request_text,
    response_text,
    scripted_worker,
    user_messages,
    wait_until,
)
from rl_conductor import (
    MINI,
    Card,
    ConfigError,
    Flow,
    Limits,
    ModelError,
    Policy,
    PolicyError,
    RunError,
    ScriptedModel,
    Worker,
)
from rl_conductor.models import Capabilities
from rl_conductor.trace.summary import Summary
from rl_conductor.types import Completion, JsonFormat, Message, ReasoningPart, TextPart

ANSWER = "The whole answer."


async def collect(stream: Any) -> list[Any]:
    return [response async for response in await stream]


def test_the_router_of_a_pool_file_applies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capital_router("small", model="ollama:llama3.2").write(tmp_path / "router.json")
    (tmp_path / "pool.toml").write_text('router = "router.json"\n[workers.small]\nmodel = "ollama:llama3.2"\n')
    monkeypatch.setenv("RL_CONDUCTOR_POOL", str(tmp_path / "pool.toml"))
    assert Conductor()._core.config.router == capital_router("small", model="ollama:llama3.2")


def test_the_planner_settings_of_a_pool_file_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pool.toml").write_text(f'{TRAINED}[workers.small]\nmodel = "ollama:llama3.2"\n')
    monkeypatch.setenv("RL_CONDUCTOR_POOL", str(tmp_path / "pool.toml"))
    core = Conductor(profile="ultra")._core
    assert (core.planner.form, core.planner.examples) == ("rows", 0)
    assert (core.config.access, core.limits.steps, core.limits.rounds) == ("positional", 3, 2)
    assert Conductor(access="binary")._core.config.access == "binary"


def test_a_profile_and_a_planner_work_with_any_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert conductor(profile="mini")._core.limits == MINI.limits
    (tmp_path / "pool.toml").write_text(f'{TRAINED}[workers.small]\nmodel = "ollama:llama3.2"\n')
    monkeypatch.setenv("RL_CONDUCTOR_POOL", str(tmp_path / "pool.toml"))
    core = Conductor(planner=EchoLLM())._core.config
    assert (core.planner.model.name, list(core.pool), core.access) == ("llamaindex:echo", ["small"], "positional")


def test_a_profile_with_another_planner_keeps_the_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RL_CONDUCTOR_POOL", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    usual, mini = (Conductor(profile=profile, instructions="Check twice.")._core for profile in (None, "mini"))
    assert usual.planner.model.name != mini.planner.model.name
    assert usual.planner.instructions == mini.planner.instructions == "Check twice."


def test_a_core_conductor_keeps_its_settings_unless_others_are_set() -> None:
    model = ScriptedModel("A.")
    core = rl_conductor.Conductor(model, {"a": model}, keep_prompts=False, retries=0, access="positional", name="shop")
    kept = Conductor(conductor=core)._core.config
    assert (kept.keep_prompts, kept.retries, kept.access, kept.name) == (False, 0, "positional", "shop")
    changed = Conductor(conductor=core, access="binary", max_retries=1)._core.config
    assert (changed.access, changed.retries) == ("binary", 1)


def test_all_eight_methods_return_the_answer() -> None:
    llm = conductor()
    assert llm.complete("Why?").text == ANSWER
    assert response_text(llm.chat(user_messages("Why?"))) == ANSWER
    assert [*llm.stream_complete("Why?")][-1].text == ANSWER
    assert response_text([*llm.stream_chat(user_messages("Why?"))][-1]) == ANSWER
    assert asyncio.run(llm.acomplete("Why?")).text == ANSWER
    assert response_text(asyncio.run(llm.achat(user_messages("Why?")))) == ANSWER
    assert asyncio.run(collect(llm.astream_complete("Why?")))[-1].text == ANSWER
    assert response_text(asyncio.run(collect(llm.astream_chat(user_messages("Why?"))))[-1]) == ANSWER


def test_a_stream_contains_the_final_workers_own_chunks() -> None:
    pieces = [*conductor().stream_chat(user_messages("Why?"))]
    assert [piece.delta for piece in pieces] == ["The ", "whole ", "answer.", ""]
    assert [response_text(piece) for piece in pieces] == ["The ", "The whole ", ANSWER, ANSWER]
    last: Any = pieces[-1].raw
    assert last["usage"]["calls"] == 3
    assert [piece.raw for piece in pieces[:-1]] == [None] * 3


@pytest.mark.parametrize("nested", [False, True], ids=["a worker", "a worker of a worker"])
def test_the_chunks_of_the_reasoning_come_before_those_of_the_answer(*, nested: bool) -> None:
    content = (ReasoningPart(text="Hm. Well."), TextPart(text="The answer."))
    reply = Completion(message=Message(role="assistant", content=content), model="m")
    writer: Any = conductor("A draft.", ScriptedModel([reply]))
    llm = conductor("A draft.", writer) if nested else writer
    pieces = [*llm.stream_chat(user_messages("Why?"))]
    assert [piece.additional_kwargs.get("thinking_delta") for piece in pieces[:2]] == ["Hm. Well.", None]
    assert [piece.delta for piece in pieces] == ["", "The ", "answer.", ""]
    for piece in pieces:
        (thinking,) = [block for block in piece.message.blocks if isinstance(block, ThinkingBlock)]
        assert thinking.content == "Hm. Well."


async def test_the_first_chunk_arrives_before_the_answer_is_complete() -> None:
    slow = ScriptedModel([["First ", ModelError("it broke off", model="slow")]], name="slow")
    pieces: list[ChatResponse] = []
    with pytest.raises(RunError, match="it broke off"):  # noqa: PT012  (the chunks before the error are checked)
        async for piece in await conductor("A draft.", slow).astream_chat(user_messages("Why?")):
            pieces.append(piece)  # noqa: PERF401  (the iteration fails)
    assert [piece.delta for piece in pieces] == ["First "]


async def test_async_calls_run_concurrently() -> None:
    slow = ScriptedModel("Done.", delay=0.3)
    llm = Conductor({"slow": slow}, limits=Limits(steps=1))
    await asyncio.gather(*(llm.achat(user_messages("Why?")) for _ in range(5)))
    assert slow.peak == 5


async def test_cancelling_a_call_cancels_its_workers() -> None:
    slow = ScriptedModel("Never.", delay=60.0)
    task = asyncio.create_task(conductor(slow).achat(user_messages("Why?")))
    await wait_until(lambda: slow.in_flight == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert slow.in_flight == 0


@pytest.mark.parametrize("way", ["achat", "astream_chat"])
async def test_a_cancelled_call_leaves_its_trace(way: str) -> None:
    slow = ScriptedModel("Never.", delay=60.0)
    llm = conductor(slow)

    async def ask() -> None:
        if way == "achat":
            await llm.achat(user_messages("Why?"))
        else:
            await collect(llm.astream_chat(user_messages("Why?")))

    task = asyncio.create_task(ask())
    await wait_until(lambda: slow.in_flight == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert slow.in_flight == 0
    assert llm.trace is not None
    assert llm.trace.error == "cancelled"


async def test_closing_a_stream_cancels_its_workers() -> None:
    slow = ScriptedModel(lambda _: ["First ", "second."], name="slow")
    waiting = ScriptedModel("Never.", delay=60.0)
    llm = Conductor(
        {"slow": slow, "waiting": waiting}, planner=planner(plan((1, "Wait.", []), (0, "Answer.", ["all"])))
    )
    stream = await llm.astream_chat(user_messages("Why?"))
    reading = asyncio.create_task(anext(stream))
    await wait_until(lambda: waiting.in_flight == 1)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await stream.aclose()
    assert waiting.in_flight == 0


def test_closing_a_sync_stream_ends_it() -> None:
    stream = conductor().stream_chat(user_messages("Why?"))
    assert next(stream).delta == "The "
    stream.close()
    assert [*stream] == []


@pytest.mark.parametrize(("settings", "calls"), [({}, 3), ({"max_retries": 1}, 2), ({"max_retries": 0}, 1)])
def test_only_the_core_retries(settings: dict[str, Any], calls: int) -> None:
    flaky = ScriptedModel(
        [ModelError("busy", model="flaky", retryable=True, retry_after=0.01) for _ in range(3)], name="flaky"
    )
    llm = Conductor({"flaky": flaky}, limits=Limits(steps=1), **settings)
    with pytest.raises(RunError, match="busy"):
        llm.complete("Why?")
    assert len(flaky.requests) == calls


def test_the_trace_is_kept_and_the_response_contains_its_summary() -> None:
    llm = conductor()
    assert llm.trace is None
    response = llm.chat(user_messages("Why?"))
    assert llm.trace is not None
    assert response.raw["conductor"] == Summary.of(llm.trace).model_dump(mode="json")
    assert response.additional_kwargs["total_tokens"] == llm.trace.usage.total_tokens
    json.dumps(response.raw)
    assert llm.complete("Why?").raw["usage"] == response.raw["usage"]


def test_sampling_parameters_reach_the_final_worker_only() -> None:
    llm = conductor(temperature=0.5, max_tokens=77)
    llm.chat(user_messages("Why?"), stop="END", seed=3)
    final, first = (
        scripted_worker(llm, "writer").requests[0].sampling,
        scripted_worker(llm, "drafter").requests[0].sampling,
    )
    assert (final.temperature, final.max_tokens, final.stop, final.seed) == (0.5, 77, ("END",), 3)
    assert first.temperature is None


def test_a_rate_limiter_is_allowed() -> None:
    limiter = TokenBucketRateLimiter(requests_per_minute=60_000)
    llm = conductor(rate_limiter=limiter)
    llm.complete("Why?")
    assert llm.rate_limiter is limiter


# ------------------------------------------------------------------------------------------ metadata


def test_the_context_window_is_the_smallest_of_the_final_workers() -> None:
    workers: dict[str, Any] = {"small": EchoLLM(window=1_000), "large": EchoLLM(window=9_000)}
    assert Conductor(workers, planner=planner()).metadata.context_window == 1_000
    assert Conductor(workers, planner=planner(), policy=Policy(final="large")).metadata.context_window == 9_000
    assert Conductor(workers, planner=planner(), context_window=500).metadata.context_window == 500
    workers = {"large": EchoLLM(window=9_000), "index": SummaryIndex([]).as_retriever()}
    assert Conductor(workers, planner=planner()).metadata.context_window == 9_000


def test_published_context_windows_of_vendors_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    assert Conductor(["openai:gpt-4o", "openai:gpt-5"]).metadata.context_window == 128_000


def test_the_context_window_of_an_in_process_model_is_used() -> None:
    assert Conductor(["embedded:smollm2-135m"]).metadata.context_window == 4096
    worker = {"model": "embedded:smollm2-135m", "options": {"context": 2048}}
    assert Conductor({"tiny": worker}).metadata.context_window == 2048


def test_the_maximum_output_is_that_of_the_final_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    assert Conductor(["openai:gpt-4o"]).metadata.num_output == 4096
    small = ScriptedModel("Hi.", capabilities=Capabilities(context=2000))
    assert Conductor({"small": small}, planner=planner()).metadata.num_output == 500
    workers: dict[str, Any] = {"echo": EchoLLM(max_output=700), "large": EchoLLM(max_output=900)}
    assert Conductor(workers, planner=planner()).metadata.num_output == 900
    assert Conductor(workers, planner=planner(), policy=Policy(final="echo")).metadata.num_output == 700
    assert Conductor(workers, planner=planner(), max_tokens=50).metadata.num_output == 50
    nested = Conductor(workers, planner=planner())
    assert Conductor({"nested": nested}, planner=planner()).metadata.num_output == 900


def test_unknown_metadata_has_the_defaults_of_llamaindex() -> None:
    about = conductor().metadata
    assert (about.context_window, about.num_output) == (3900, 256)
    assert about.is_chat_model
    assert about.is_function_calling_model
    assert about.model_name == "conductor"
    assert conductor(profile="ultra").metadata.model_name == "conductor-ultra"


def test_it_is_a_function_calling_model_if_a_final_worker_supports_tools() -> None:
    workers: dict[str, Any] = {"echo": EchoLLM(), "caller": ScriptedModel("Hi.")}
    assert Conductor(workers, planner=planner()).metadata.is_function_calling_model
    assert not Conductor(workers, planner=planner(), policy=Policy(final="echo")).metadata.is_function_calling_model


# -------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"workers": {"a": "gpt-5"}}, "write 'provider:model'"),
        ({"workers": {"a": 7}}, "as_query_engine()"),
        ({"workers": 7}, "workers is a int; write a list"),
        ({"workers": {}}, "at least one worker"),
        (
            {"workers": [FunctionTool.from_defaults(user_messages)]},
            "'user_messages' is a FunctionTool, which is not a worker",
        ),
        ({"workers": [EchoLLM(), EchoLLM()]}, "its own name"),
        ({"workers": {"a": EchoLLM()}, "model": "x"}, "unknown options: model; Conductor accepts workers, planner"),
        ({"workers": {"a": EchoLLM()}, "planner": 7}, "'planner' is a int, which is not a worker"),
        ({"workers": {"a": EchoLLM()}, "planner": {"model": EchoLLM()}}, "with a price LLMModel(llm, price="),
        ({"workers": {"a": {"model": "openai:x", "tag": 1}}}, "worker 'a' is invalid: tag"),
        ({"workers": {"a": {"model": "openai:x", "options": {"api_key": "sk-1"}}}}, "set it in the environment"),
    ],
)
def test_a_wrong_option_is_an_error_at_construction_in_one_line(options: dict[str, Any], cure: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Conductor(**options)
    assert cure in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "sk-1" not in str(caught.value)


def test_an_impossible_policy_is_an_error_at_construction() -> None:
    with pytest.raises(PolicyError, match=r"policy\.final is 'nobody'"):
        conductor(policy=Policy(final="nobody"))


def test_an_unknown_keyword_of_a_call_is_an_error() -> None:
    with pytest.raises(
        ConfigError,
        match=r"unknown keyword arguments: temprature; this LLM accepts .*, and a vendor's other options belong",
    ):
        conductor().complete("Why?", temprature=1.0)


def test_a_call_may_ask_for_one_answer_but_not_for_several() -> None:
    assert conductor().complete("Why?", n=1).text == "The whole answer."
    with pytest.raises(ConfigError, match="unknown keyword arguments: n;"):
        conductor().complete("Why?", n=2)


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, JsonFormat()),
        (
            {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": False}},
            JsonFormat(name="place", json_schema=SCHEMA, strict=False),
        ),
        (SCHEMA, JsonFormat(json_schema=SCHEMA)),
    ],
)
def test_the_response_format_may_be_in_openais_form(requested: Any, expected: JsonFormat | None) -> None:
    llm = conductor(second='{"city": "Ulm"}')
    llm.complete("Where, in JSON?", response_format=requested)
    assert scripted_worker(llm, "writer").requests[0].response_format == expected


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ({"temperature": "hot"}, "temperature='hot' is invalid: "),
        ({"timeout": "x"}, "timeout='x' is invalid: "),
        ({"max_tokens": 0}, "max_tokens=0 is invalid: "),
        ({"stop": 5}, "stop=5 is invalid: "),
        ({"response_format": 5}, "response_format is 5; write a pydantic class"),
    ],
)
def test_an_invalid_value_of_a_keyword_is_an_error(option: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        conductor().complete("Why?", **option)
    assert str(caught.value).startswith(why)
    assert "\n" not in str(caught.value)


def test_tools_that_no_worker_supports_are_an_error() -> None:
    tool = FunctionTool.from_defaults(lambda: "x", name="look")
    llm = Conductor({"plain": ScriptedModel("Hi.", capabilities=Capabilities())})
    with pytest.raises(ConfigError, match="no worker that may give the answer supports tools"):
        llm.chat_with_tools([tool], user_msg="Look!")


def test_a_core_worker_gets_the_name_of_its_key() -> None:
    worker = Worker.of("gpt", ScriptedModel("Hi."))
    llm = Conductor({"fast": worker, "slow": worker}, policy=Policy(final="fast"))
    assert [worker.card.name for worker in llm._selected.pool.values()] == ["fast", "slow"]


@pytest.mark.parametrize("worker", ["openai:gpt-5", EchoLLM(), ScriptedModel("x"), Worker.of("w", ScriptedModel("x"))])
def test_a_single_worker_needs_no_list(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    assert len(Conductor(worker).workers) == 1


def test_core_workers_llms_and_model_names_can_be_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    tagged = Worker.of("tagged", ScriptedModel("Hi."), card=Card(name="tagged", tags=frozenset({"inside"})))
    llm = Conductor(["openai:gpt-5", EchoLLM(), tagged, ScriptedModel("x", name="scripted-one")])
    assert list(llm.workers) == ["gpt-5", "echo", "tagged", "scripted-one"]


def test_a_system_message_reaches_every_worker() -> None:
    llm = conductor()
    llm.chat([ChatMessage(role="system", content="Be brief."), ChatMessage(content="Why?")])
    assert all("Be brief." in request_text(scripted_worker(llm, name).requests[0]) for name in ("drafter", "writer"))


def test_forbidden_flows_are_enforced() -> None:
    forbidden = Policy(forbid=(Flow(reader="writer", source="drafter"),))
    llm = conductor("A SECRET.", policy=forbidden)
    llm.complete("Why?")
    assert all("SECRET" not in request_text(request) for request in scripted_worker(llm, "writer").requests)


def test_instructions_are_in_the_planners_prompt() -> None:
    model = ScriptedModel('model_id = [0]\nsubtasks = ["Answer."]\naccess_list = [[]]')
    llm = Conductor({"a": ScriptedModel("Hi.")}, planner=model, instructions="Check every number.")
    llm.complete("hi")
    assert "Check every number." in str(model.requests[0].messages)
    assert llm.to_dict()["instructions"] == "Check every number."
