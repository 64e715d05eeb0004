"""The Conductor as an LLM: eight ways to ask, metadata, errors, cancellation, retries."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import SummaryIndex
from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.rate_limiter import TokenBucketRateLimiter
from llama_index.core.tools import FunctionTool

from core.capitals import tiers
from core.pools import TRAINED
from llama_index.llms.conductor import Conductor
from llamaindex.scripts import EchoLLM, asked, conductor, core_of, plan, planner, shown, text_of, until
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

ANSWER = "The whole answer."


async def all_of(stream: Any) -> list[Any]:
    return [response async for response in await stream]


def test_the_tiers_of_a_pool_file_hold_here_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiers("small", model="ollama:llama3.2").write(tmp_path / "tiers.json")
    (tmp_path / "pool.toml").write_text('tiers = "tiers.json"\n[workers.small]\nmodel = "ollama:llama3.2"\n')
    monkeypatch.setenv("RL_CONDUCTOR_POOL", str(tmp_path / "pool.toml"))
    assert Conductor()._core.tiers == tiers("small", model="ollama:llama3.2")


def test_a_pool_file_says_here_too_how_its_planner_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pool.toml").write_text(f'{TRAINED}[workers.small]\nmodel = "ollama:llama3.2"\n')
    monkeypatch.setenv("RL_CONDUCTOR_POOL", str(tmp_path / "pool.toml"))
    core = Conductor(profile="ultra")._core
    assert (core.planner.form, core.planner.examples) == ("lines", 0)
    assert (core.access, core.limits.steps, core.limits.rounds) == ("positional", 3, 2)
    assert Conductor(access="binary")._core.access == "binary"


def test_a_profile_and_a_planner_go_with_any_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert conductor(profile="mini")._core.limits == MINI.limits
    (tmp_path / "pool.toml").write_text(f'{TRAINED}[workers.small]\nmodel = "ollama:llama3.2"\n')
    monkeypatch.setenv("RL_CONDUCTOR_POOL", str(tmp_path / "pool.toml"))
    found = Conductor(planner=EchoLLM())._core
    assert (found.planner.model.name, list(found.pool), found.access) == ("llamaindex:echo", ["small"], "positional")


def test_every_way_of_asking_gives_the_answer() -> None:
    llm = conductor()
    assert llm.complete("Why?").text == ANSWER
    assert text_of(llm.chat(asked("Why?"))) == ANSWER
    assert [*llm.stream_complete("Why?")][-1].text == ANSWER
    assert text_of([*llm.stream_chat(asked("Why?"))][-1]) == ANSWER
    assert asyncio.run(llm.acomplete("Why?")).text == ANSWER
    assert text_of(asyncio.run(llm.achat(asked("Why?")))) == ANSWER
    assert asyncio.run(all_of(llm.astream_complete("Why?")))[-1].text == ANSWER
    assert text_of(asyncio.run(all_of(llm.astream_chat(asked("Why?"))))[-1]) == ANSWER


def test_a_stream_is_the_final_workers_own_pieces() -> None:
    pieces = [*conductor().stream_chat(asked("Why?"))]
    assert [piece.delta for piece in pieces] == ["The ", "whole ", "answer.", ""]
    assert [text_of(piece) for piece in pieces] == ["The ", "The whole ", ANSWER, ANSWER]
    last: Any = pieces[-1].raw
    assert last["usage"]["calls"] == 3
    assert [piece.raw for piece in pieces[:-1]] == [None] * 3


async def test_the_first_piece_comes_before_the_answer_is_whole() -> None:
    slow = ScriptedModel([["First ", ModelError("it broke off", model="slow")]], name="slow")
    pieces: list[ChatResponse] = []
    with pytest.raises(RunError, match="it broke off"):  # noqa: PT012  (what was said before it broke counts)
        async for piece in await conductor("A draft.", slow).astream_chat(asked("Why?")):
            pieces.append(piece)  # noqa: PERF401  (it is the failure in between that matters)
    assert [piece.delta for piece in pieces] == ["First "]


async def test_async_calls_share_the_loop() -> None:
    slow = ScriptedModel("Done.", delay=0.3)
    llm = Conductor({"slow": slow}, limits=Limits(steps=1))
    await asyncio.gather(*(llm.achat(asked("Why?")) for _ in range(5)))
    assert slow.peak == 5


async def test_cancelling_a_call_cancels_its_workers() -> None:
    slow = ScriptedModel("Never.", delay=60.0)
    task = asyncio.create_task(conductor(slow).achat(asked("Why?")))
    await until(lambda: slow.in_flight == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert slow.in_flight == 0


@pytest.mark.parametrize("way", ["achat", "astream_chat"])
async def test_a_call_that_is_cancelled_leaves_its_trace(way: str) -> None:
    slow = ScriptedModel("Never.", delay=60.0)
    llm = conductor(slow)

    async def ask() -> None:
        if way == "achat":
            await llm.achat(asked("Why?"))
        else:
            await all_of(llm.astream_chat(asked("Why?")))

    task = asyncio.create_task(ask())
    await until(lambda: slow.in_flight == 1)
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
    stream = await llm.astream_chat(asked("Why?"))
    reading = asyncio.create_task(anext(stream))
    await until(lambda: waiting.in_flight == 1)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await stream.aclose()
    assert waiting.in_flight == 0


def test_closing_a_sync_stream_early_ends_it() -> None:
    stream = conductor().stream_chat(asked("Why?"))
    assert next(stream).delta == "The "
    stream.close()
    assert [*stream] == []


def test_what_fails_for_a_passing_reason_is_repeated_by_the_core_alone() -> None:
    flaky = ScriptedModel(
        [ModelError("busy", model="flaky", retryable=True, retry_after=0.01) for _ in range(3)], name="flaky"
    )
    llm = Conductor({"flaky": flaky}, limits=Limits(steps=1))
    with pytest.raises(RunError, match="busy"):
        llm.complete("Why?")
    assert len(flaky.requests) == 3


def test_the_whole_trace_is_kept_and_its_summary_goes_along() -> None:
    llm = conductor()
    assert llm.trace is None
    response = llm.chat(asked("Why?"))
    assert llm.trace is not None
    assert response.raw["conductor"] == Summary.of(llm.trace).model_dump(mode="json")
    assert response.additional_kwargs["total_tokens"] == llm.trace.usage.total_tokens
    json.dumps(response.raw)
    assert llm.complete("Why?").raw["usage"] == response.raw["usage"]


def test_what_the_caller_asks_for_reaches_the_final_worker_only() -> None:
    llm = conductor(temperature=0.5, max_tokens=77)
    llm.chat(asked("Why?"), stop="END", seed=3)
    final, first = core_of(llm, "writer").requests[0].sampling, core_of(llm, "drafter").requests[0].sampling
    assert (final.temperature, final.max_tokens, final.stop, final.seed) == (0.5, 77, ("END",), 3)
    assert first.temperature is None


def test_a_rate_limiter_holds_for_every_call() -> None:
    limiter = TokenBucketRateLimiter(requests_per_minute=60_000)
    llm = conductor(rate_limiter=limiter)
    llm.complete("Why?")
    assert llm.rate_limiter is limiter


# ------------------------------------------------------------------------------------------ metadata


def test_the_context_window_is_the_smallest_of_those_who_may_answer() -> None:
    workers: dict[str, Any] = {"small": EchoLLM(window=1_000), "large": EchoLLM(window=9_000)}
    assert Conductor(workers, planner=planner()).metadata.context_window == 1_000
    assert Conductor(workers, planner=planner(), policy=Policy(final="large")).metadata.context_window == 9_000
    assert Conductor(workers, planner=planner(), context_window=500).metadata.context_window == 500
    workers = {"large": EchoLLM(window=9_000), "index": SummaryIndex([]).as_retriever()}
    assert Conductor(workers, planner=planner()).metadata.context_window == 9_000


def test_a_vendors_published_context_window_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    assert Conductor(["openai:gpt-4o", "openai:gpt-5"]).metadata.context_window == 128_000


def test_the_context_of_a_model_in_this_process_is_known() -> None:
    assert Conductor(["embedded:smollm2-135m"]).metadata.context_window == 4096
    worker = {"model": "embedded:smollm2-135m", "options": {"context": 2048}}
    assert Conductor({"tiny": worker}).metadata.context_window == 2048


def test_what_is_not_known_is_llamaindexs_default() -> None:
    about = conductor().metadata
    assert (about.context_window, about.num_output) == (3900, 256)
    assert about.is_chat_model
    assert about.is_function_calling_model
    assert about.model_name == "conductor"
    assert conductor(profile="ultra").metadata.model_name == "conductor-ultra"


def test_it_calls_functions_when_a_worker_that_may_answer_does() -> None:
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
        ({"workers": [FunctionTool.from_defaults(asked)]}, "'asked' is a FunctionTool, which can't work"),
        ({"workers": [EchoLLM(), EchoLLM()]}, "a name of its own"),
        ({"workers": {"a": EchoLLM()}, "model": "x"}, "a Conductor takes no model; it takes workers"),
        ({"workers": {"a": EchoLLM()}, "planner": 7}, "'planner' is a int, which can't work"),
        ({"workers": {"a": {"model": "openai:x", "tag": 1}}}, "worker 'a' is invalid: tag"),
        ({"workers": {"a": {"model": "openai:x", "options": {"api_key": "sk-1"}}}}, "set it in the environment"),
    ],
)
def test_a_mistake_is_told_at_construction_in_one_line(options: dict[str, Any], cure: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Conductor(**options)
    assert cure in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "sk-1" not in str(caught.value)


def test_an_impossible_policy_is_told_at_construction() -> None:
    with pytest.raises(PolicyError, match=r"policy\.final is 'nobody'"):
        conductor(policy=Policy(final="nobody"))


def test_a_keyword_that_a_call_does_not_take_is_told() -> None:
    with pytest.raises(ConfigError, match="takes no temprature; it takes"):
        conductor().complete("Why?", temprature=1.0)


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ({"temperature": "hot"}, "the option temperature is 'hot': "),
        ({"timeout": "x"}, "the option timeout is 'x': "),
        ({"stop": 5}, "the option stop is 5: "),
        ({"response_format": 5}, "response_format is 5; write a pydantic class"),
    ],
)
def test_a_value_that_a_call_does_not_take_is_told(option: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        conductor().complete("Why?", **option)
    assert str(caught.value).startswith(why)
    assert "\n" not in str(caught.value)


def test_tools_that_nobody_can_call_are_told() -> None:
    tool = FunctionTool.from_defaults(lambda: "x", name="look")
    llm = Conductor({"plain": ScriptedModel("Hi.", capabilities=Capabilities())})
    with pytest.raises(ConfigError, match="no worker that may answer can call tools"):
        llm.chat_with_tools([tool], user_msg="Look!")


def test_a_core_worker_goes_by_the_name_it_is_given() -> None:
    worker = Worker.of("gpt", ScriptedModel("Hi."))
    llm = Conductor({"fast": worker, "slow": worker}, policy=Policy(final="fast"))
    assert [one.card.name for one in llm._pool.values()] == ["fast", "slow"]


@pytest.mark.parametrize("worker", ["openai:gpt-5", EchoLLM(), ScriptedModel("x"), Worker.of("w", ScriptedModel("x"))])
def test_one_worker_needs_no_list(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    assert len(Conductor(worker).workers) == 1


def test_core_workers_llms_and_names_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    tagged = Worker.of("tagged", ScriptedModel("Hi."), card=Card(name="tagged", tags=frozenset({"inside"})))
    llm = Conductor(["openai:gpt-5", EchoLLM(), tagged, ScriptedModel("x", name="scripted-one")])
    assert list(llm.workers) == ["gpt-5", "echo", "tagged", "scripted-one"]


def test_a_system_message_reaches_every_worker() -> None:
    llm = conductor()
    llm.chat([ChatMessage(role="system", content="Be brief."), ChatMessage(content="Why?")])
    assert all("Be brief." in shown(core_of(llm, name).requests[0]) for name in ("drafter", "writer"))


def test_a_forbidden_flow_holds_inside_of_llamaindex() -> None:
    forbidden = Policy(forbid=(Flow(reader="writer", source="drafter"),))
    llm = conductor("A SECRET.", policy=forbidden)
    llm.complete("Why?")
    assert all("SECRET" not in shown(request) for request in core_of(llm, "writer").requests)
