from __future__ import annotations

import asyncio
import sys
import threading
from decimal import Decimal

import pytest

from core.runs import SOON
from rl_conductor import models
from rl_conductor.errors import BadResponseError, ConfigError, ModelError, ModelTimeoutError
from rl_conductor.models.in_process.token_stream import IncrementalDecoder, TokenStream, build_completion
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.models.tool_emulation import ToolCallReader
from rl_conductor.types import Completion, Delta, Message, Price, Request, ToolCall, Usage


def decode(tokens: list[int]) -> str:
    """Tokens are bytes."""
    return bytes(tokens).decode(errors="replace")


def pieces(text: str | bytes, *stop: str) -> tuple[list[str], IncrementalDecoder]:
    grown = IncrementalDecoder(decode, stop)
    found = []
    for token in text.encode() if isinstance(text, str) else text:
        found.append(grown.add(token))
        if grown.stopped:
            break
    found.append(grown.end())
    return [piece for piece in found if piece], grown


# -------------------------------------------------------------------------------------------- text


def test_text_comes_a_token_at_a_time() -> None:
    found, text = pieces("four")
    assert found == ["f", "o", "u", "r"]
    assert text.text == "four"
    assert text.tokens == list(b"four")


def test_a_character_of_many_tokens_comes_whole() -> None:
    assert pieces("a東🙂")[0] == ["a", "東", "🙂"]


def test_bytes_that_are_no_character_come_at_the_end() -> None:
    assert pieces(b"ok\xf0\x9f")[0] == ["o", "k", "\N{REPLACEMENT CHARACTER}"]


def test_text_ends_before_the_first_stop_string() -> None:
    found, text = pieces("one two three", "three", "two")
    assert "".join(found) == text.text == "one "
    assert text.stopped


def test_what_could_begin_a_stop_string_is_held_back() -> None:
    grown = IncrementalDecoder(decode, ["END"])
    assert [grown.add(token) for token in b"aENbEN"] == ["a", "", "", "ENb", "", ""]
    assert grown.end() == "EN"
    assert not grown.stopped


def test_an_empty_stop_string_stops_nothing() -> None:
    assert pieces("all of it", "")[1].text == "all of it"


# ----------------------------------------------------------------------------------------- replies


def test_the_models_price_makes_the_cost() -> None:
    dear = ScriptedModel("four", price=Price(input=Decimal(3), output=Decimal(5)))
    request = Request.user("?")
    reply = ToolCallReader(request, model=dear.name)
    reply.add("four")
    counted = Usage(input_tokens=2, output_tokens=1)
    usage = build_completion(reply, request, finish="stop", usage=counted, model=dear).usage
    assert (usage.calls, usage.cost) == (1, Decimal(11) / 1_000_000)


def test_an_empty_reply_is_an_answer_after_the_results_of_tools_only() -> None:
    model, asked = ScriptedModel(""), Request.user("?")
    calls = Message.assistant(tool_calls=[ToolCall(id="1", name="look", arguments="{}")])
    told = asked.model_copy(update={"messages": (*asked.messages, calls, Message.tool("1", "done"))})
    reply = ToolCallReader(told, model=model.name)
    assert build_completion(reply, told, finish="stop", usage=Usage(), model=model).text == ""
    with pytest.raises(BadResponseError, match="the reply is empty"):
        build_completion(reply, asked, finish="stop", usage=Usage(), model=model)


# ------------------------------------------------------------------------------------------- threads

LAST = Delta(completion=Completion(message=Message.assistant("ab"), usage=Usage(), model="m"))


def fed(feed: TokenStream, *items: Delta | Exception) -> None:
    def put_all() -> None:
        for item in items:
            feed.put(item)

    threading.Thread(target=put_all).start()


async def test_deltas_cross_from_another_thread_without_the_empty_ones() -> None:
    feed = TokenStream(model="m", timeout=SOON)
    fed(feed, Delta(text="a"), Delta(), Delta(text="b"), LAST)
    assert [delta async for delta in feed.deltas()] == [Delta(text="a"), Delta(text="b"), LAST]
    assert feed.abandoned.is_set()


async def test_an_error_crosses_from_another_thread() -> None:
    feed = TokenStream(model="m", timeout=None)
    fed(feed, Delta(text="a"), ModelError("broke", model="m"))
    with pytest.raises(ModelError, match="broke"):
        _ = [delta async for delta in feed.deltas()]


async def test_time_that_runs_out_abandons_the_engine() -> None:
    feed = TokenStream(model="m", timeout=0.01)
    with pytest.raises(ModelTimeoutError, match=r"0\.01 s"):
        await anext(feed.deltas())
    assert feed.abandoned.is_set()


async def test_cancelling_the_reader_abandons_the_engine() -> None:
    feed = TokenStream(model="m", timeout=None)
    reading = asyncio.create_task(anext(feed.deltas()))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    assert feed.abandoned.is_set()


def test_an_engine_that_goes_on_after_the_loop_ended_is_not_disturbed() -> None:
    async def leave() -> TokenStream:
        feed = TokenStream(model="m", timeout=0.01)
        with pytest.raises(ModelTimeoutError):
            await anext(feed.deltas())
        return feed

    asyncio.run(leave()).put(LAST)


# ------------------------------------------------------------------------------------------ libraries


@pytest.mark.parametrize(("provider", "library"), [("transformers", "torch"), ("vllm", "vllm")])
def test_a_missing_library_names_its_cure(monkeypatch: pytest.MonkeyPatch, provider: str, library: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"rl_conductor.models.{provider}.adapter", raising=False)
    with pytest.raises(ConfigError, match=rf"need {library}: pip install 'rl-conductor\[{provider}\]'"):
        models.model(f"{provider}:some/model")
