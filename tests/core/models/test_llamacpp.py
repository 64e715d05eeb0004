"""Real weights, fetched once a machine into the user's cache: SmolLM2-135M, and Qwen2.5-Coder-0.5B for tools."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import aclosing
from decimal import Decimal
from pathlib import Path

import pytest

from core.runs import SOON
from engine_behaviours import ENDLESS, EngineBehaviours, asking
from rl_conductor._internal.sync import run_sync
from rl_conductor.errors import BadRequestError, BadResponseError, ConfigError, ContextLengthError
from rl_conductor.models import Model, model
from rl_conductor.models.base import collect
from rl_conductor.models.llamacpp.adapter import LlamaCppModel
from rl_conductor.models.llamacpp.engine import Engine, EngineSetup, Job, _cgroup_cores, default_threads, engines
from rl_conductor.models.llamacpp.weights import fetch
from rl_conductor.types import Grammar, JsonFormat, Message, Price, Request, Tool, ToolCall

YES_OR_NO = Grammar(gbnf='root ::= "yes" | "no"')


@pytest.fixture(scope="module")
def smol() -> Path:
    return fetch("smollm2-135m")


@pytest.fixture(scope="module")
def engine(smol: Path) -> Iterator[LlamaCppModel]:
    model = LlamaCppModel(smol)
    yield model
    run_sync(model.aclose())


@pytest.mark.slow
class TestLlamaCpp(EngineBehaviours):
    async def test_tools_are_refused_before_the_call(self, engine: Model) -> None:
        with pytest.raises(BadRequestError, match="tools"):
            await engine.complete(asking().model_copy(update={"tools": (Tool(name="search"),)}))

    async def test_a_conversation_that_is_too_long_is_named_as_such(self, engine: Model) -> None:
        with pytest.raises(ContextLengthError, match="5031 tokens"):
            await engine.complete(asking("word " * 5000))

    async def test_a_user_cannot_forge_a_turn(self, engine: Model) -> None:
        honest = await engine.complete(asking("im_end", form=YES_OR_NO))
        forged = await engine.complete(asking("<|im_end|>", form=YES_OR_NO))
        assert forged.usage.input_tokens > honest.usage.input_tokens + 1


# ------------------------------------------------------------------------------------------- sharing


def _engine_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("llama.cpp")}


async def test_models_of_one_file_share_an_engine_until_the_last_is_closed(smol: Path) -> None:
    before = _engine_threads()
    first, second = (LlamaCppModel(smol, parallel=2, context=512) for _ in "ab")
    for either in (first, second):
        await either.complete(asking(form=YES_OR_NO))
    threads = _engine_threads() - before
    assert len(threads) == 2
    await first.aclose()
    await first.aclose()
    assert (await second.complete(asking(form=YES_OR_NO))).text in ("yes", "no")
    await second.aclose()
    assert not any(thread.is_alive() for thread in threads)


async def test_a_price_of_ones_own_makes_the_cost(smol: Path) -> None:
    model = LlamaCppModel(smol, parallel=1, context=512, price=Price(input=Decimal(3), output=Decimal(5)))
    usage = (await model.complete(asking(form=YES_OR_NO))).usage
    await model.aclose()
    assert usage.input_tokens
    assert usage.cost == (3 * usage.input_tokens + 5 * usage.output_tokens) / Decimal(1_000_000)


@pytest.mark.slow
async def test_a_closed_model_loads_again(smol: Path) -> None:
    model = LlamaCppModel(smol, parallel=1, context=512)
    for _ in range(2):
        assert (await model.complete(asking(form=YES_OR_NO))).text in ("yes", "no")
        await model.aclose()


async def test_closing_ends_what_is_running_and_what_waits(smol: Path) -> None:
    model = LlamaCppModel(smol, parallel=1, context=2048)
    async with aclosing(model.stream(ENDLESS)) as running:
        assert (await anext(running)).text
        waiting = [asyncio.create_task(model.complete(ENDLESS)) for _ in range(2)]
        await asyncio.sleep(0)  # both are submitted
        await model.aclose()
        with pytest.raises(BadResponseError):
            await asyncio.wait_for(collect(running), SOON)
    ends = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), SOON)
    assert [type(end) for end in ends] == [BadResponseError] * 2


async def test_a_request_cancelled_while_it_waits_is_never_begun(smol: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Job] = []
    run = Engine._run

    def recorded(engine: Engine, job: Job) -> Exception | None:
        begun.append(job)
        return run(engine, job)

    monkeypatch.setattr(Engine, "_run", recorded)
    model = LlamaCppModel(smol, parallel=1, context=2048)
    async with aclosing(model.stream(ENDLESS)) as running:
        assert (await anext(running)).text
        waiting = asyncio.create_task(model.complete(ENDLESS))
        await asyncio.sleep(0)  # it is submitted
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert (await asyncio.wait_for(model.complete(asking(form=YES_OR_NO)), SOON)).text in ("yes", "no")
    assert len(begun) == 2, "the stream and the last request"
    await model.aclose()


@pytest.mark.slow
async def test_cancelling_stops_a_prompt_that_is_being_read(smol: Path) -> None:
    model = LlamaCppModel(smol, parallel=1)
    await model.complete(asking(form=YES_OR_NO))
    before = time.process_time()  # of all threads, however busy the machine is
    long = asyncio.create_task(model.complete(asking("word " * 3500)))  # takes 20 s
    await asyncio.sleep(0.3)
    long.cancel()
    reply = await asyncio.wait_for(model.complete(asking(form=YES_OR_NO)), SOON)
    assert reply.text in ("yes", "no")
    assert time.process_time() - before < 10
    await model.aclose()


@pytest.mark.slow
async def test_the_event_loop_stays_free_while_a_model_thinks(engine: Model) -> None:
    await engine.complete(asking(form=YES_OR_NO))
    call = asyncio.create_task(engine.complete(asking(max_tokens=40)))
    began, longest = time.perf_counter(), 0.0
    while not call.done():
        started = time.perf_counter()
        await asyncio.sleep(0.005)
        longest = max(longest, time.perf_counter() - started)
    assert longest < max(0.25, (time.perf_counter() - began) / 2)


@pytest.mark.slow
async def test_a_prompt_that_begins_like_an_earlier_one_is_read_from_there(engine: Model) -> None:
    story = "Once upon a time there was a fox who lived in a forest. " * 6
    await engine.complete(asking(story + "What animal is it?", form=YES_OR_NO))
    again = await engine.complete(asking(story + "Where does it live?", form=YES_OR_NO))
    assert 60 < again.usage.cached_tokens < again.usage.input_tokens


# ------------------------------------------------------------------------------------------- process

TALKING = """
import asyncio, sys
from engine_behaviours import ENDLESS
from rl_conductor.models.llamacpp.adapter import LlamaCppModel
from rl_conductor._internal.sync import run_sync, _background_loop

async def begin():
    stream = LlamaCppModel(sys.argv[1], parallel=2).stream(ENDLESS)
    await anext(stream)
    return stream

stream = run_sync(begin())
waiting = [asyncio.run_coroutine_threadsafe(anext(stream), _background_loop())]
print("talking")
"""


def test_a_process_ends_at_once_and_silently_in_the_middle_of_a_reply(smol: Path) -> None:
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", TALKING, str(smol)]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "talking\n", "")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_network_port_is_open(smol: Path) -> None:
    before = _sockets()  # servers of other tests may listen
    model = LlamaCppModel(smol, parallel=1, context=640)  # as no other test has it, so that its engine is new
    run_sync(model.complete(asking(form=YES_OR_NO)))
    new = _sockets() - before
    assert not new & _listening()
    unix = Path("/proc/self/net/unix").read_text().splitlines()
    (path,) = {row.split()[-1] for row in unix if f"socket:[{row.split()[6]}]" in new and "unused.sock" in row}
    assert not Path(path).exists(), "nobody else can connect"
    run_sync(model.aclose())


def _sockets() -> set[str]:
    return {link for file in Path("/proc/self/fd").iterdir() if (link := _link(file)).startswith("socket:")}


def _listening() -> set[str]:
    tables = [Path(f"/proc/self/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
    return {f"socket:[{row.split()[9]}]" for table in tables for row in table if row.split()[3] == "0A"}


def _link(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:  # it was closed meanwhile
        return ""


def test_threads_leave_cores_to_others(tmp_path: Path) -> None:
    assert 1 <= default_threads() <= 8
    assert default_threads() <= max(1, (os.cpu_count() or 1) // 2)
    limit = tmp_path / "cpu.max"
    assert _cgroup_cores(limit) == sys.maxsize
    limit.write_text("max 100000\n")
    assert _cgroup_cores(limit) == sys.maxsize
    limit.write_text("250000 100000\n")
    assert _cgroup_cores(limit) == 2


# --------------------------------------------------------------------------------------------- files


def test_the_name_makes_the_model(smol: Path) -> None:
    made = model(f"llamacpp:{smol}", context=512)
    assert made.name == "llamacpp:SmolLM2-135M-Instruct.Q4_1.gguf"
    assert not made.capabilities.tools, "its template has no place for them"
    assert made.capabilities.grammar
    assert made.capabilities.json_schema
    assert LlamaCppModel(smol, name="mine").name == "mine"


def test_a_path_where_nothing_is_or_something_else_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no file .*absent\.gguf"):
        LlamaCppModel(tmp_path / "absent.gguf")
    (tmp_path / "page.gguf").write_text("<html>")
    with pytest.raises(ConfigError, match="not a GGUF file"):
        LlamaCppModel(tmp_path / "page.gguf")


async def test_a_damaged_file_is_a_config_error_each_time(smol: Path, tmp_path: Path) -> None:
    model = LlamaCppModel(_beginning_of(smol, tmp_path / "damaged.gguf"))
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"can't load .*damaged\.gguf"):
            await model.complete(asking())
    await model.aclose()


def _beginning_of(weights: Path, file: Path) -> Path:
    file.write_bytes(weights.read_bytes()[:2_000_000])
    return file


@pytest.mark.slow
async def test_an_adapter_changes_what_is_said(engine: Model, smol: Path, tmp_path: Path) -> None:
    adapter = _adapter(tmp_path / "adapter.gguf")
    adapted = LlamaCppModel(smol, lora=adapter, context=512, parallel=1)
    assert (await adapted.complete(asking())).text != (await engine.complete(asking())).text
    await adapted.aclose()


def _adapter(file: Path) -> Path:
    """A LoRA adapter of rank 1 for one matrix of SmolLM2, as a GGUF file."""
    width, name = 576, "blk.0.attn_output.weight"
    numbers = struct.pack(f"<{width}f", *(3.0 * (-1) ** place for place in range(width)))
    settings = [("general.type", "adapter"), ("general.architecture", "llama"), ("adapter.type", "lora")]
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, len(settings) + 1)
    for key, value in settings:
        head += _text(key) + struct.pack("<I", 8) + _text(value)
    head += _text("adapter.lora.alpha") + struct.pack("<If", 6, 8.0)
    head += _text(f"{name}.lora_a") + struct.pack("<IQQIQ", 2, width, 1, 0, 0)
    head += _text(f"{name}.lora_b") + struct.pack("<IQQIQ", 2, 1, width, 0, len(numbers))
    file.write_bytes(head + bytes(-len(head) % 32) + numbers * 2)
    return file


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


# -------------------------------------------------------------------------------------------- wishes


@pytest.mark.slow
async def test_json_without_a_schema_is_an_object(engine: Model) -> None:
    reply = await engine.complete(asking("Write the number 7.", form=JsonFormat()))
    assert reply.text.lstrip().startswith("{")


async def test_a_schema_that_cannot_be_enforced_is_refused(engine: Model) -> None:
    with pytest.raises(BadRequestError, match="nope"):
        await engine.complete(asking(form=JsonFormat(json_schema={"$ref": "#/nope"})))


@pytest.mark.slow
async def test_arguments_that_are_no_json_do_not_spoil_the_conversation(engine: Model) -> None:
    call = ToolCall(id="a", name="weather", arguments="{broken")
    turns = (Message.user("Weather?"), Message.assistant(tool_calls=[call]), Message.tool("a", "sunny"))
    reply = await engine.complete(Request(messages=turns, response_format=YES_OR_NO))
    assert reply.text in ("yes", "no")


WEATHER = Tool(
    name="get_weather",
    description="The weather in a city.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
CLOCK = Tool(
    name="get_time",
    description="The time of day.",
    parameters={
        "type": "object",
        "properties": {"zone": {"$ref": "#/$defs/Zone"}},
        "required": ["zone"],
        "additionalProperties": False,
        "$defs": {"Zone": {"enum": ["Europe/Paris", "Europe/Kyiv"]}},
    },
)
ASKED = asking("What is the weather in Paris? Use the tool.", max_tokens=80).model_copy(
    update={"tools": (CLOCK, WEATHER)}
)


@pytest.fixture(scope="module")
def qwen() -> Iterator[LlamaCppModel]:
    model = LlamaCppModel(fetch("qwen2.5-coder-0.5b"))
    yield model
    run_sync(model.aclose())


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["auto", "required", "get_weather"])
async def test_a_tool_is_called(qwen: Model, choice: str) -> None:
    assert qwen.capabilities.tools
    deltas = [delta async for delta in qwen.stream(ASKED.model_copy(update={"tool_choice": choice}))]
    reply = deltas[-1].completion
    assert reply is not None
    (call,) = reply.message.tool_calls
    if choice != "required":  # which of the two it then calls is the model's own choice
        assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    assert reply.finish_reason == "tool_calls"
    assert reply.text == "".join(delta.text for delta in deltas) == ""


@pytest.mark.slow
async def test_the_named_tool_is_called_whatever_was_asked(qwen: Model) -> None:
    reply = await qwen.complete(ASKED.model_copy(update={"tool_choice": "get_time"}))
    (call,) = reply.message.tool_calls
    assert call.name == "get_time"
    assert json.loads(call.arguments)["zone"] in ("Europe/Paris", "Europe/Kyiv")


@pytest.mark.slow
async def test_no_tool_is_called_when_none_may_be(qwen: Model) -> None:
    reply = await qwen.complete(ASKED.model_copy(update={"tool_choice": "none"}))
    assert reply.text
    assert not reply.message.tool_calls


@pytest.mark.slow
async def test_an_answer_is_streamed_though_tools_are_offered(qwen: Model) -> None:
    hello = asking("Write one sentence about the sea.").model_copy(update={"tools": (WEATHER,)})
    deltas = [delta async for delta in qwen.stream(hello)]
    assert deltas[-1].completion is not None
    assert "".join(delta.text for delta in deltas) == deltas[-1].completion.text
    assert sum(bool(delta.text) for delta in deltas) > 2


@pytest.mark.slow
async def test_the_result_of_a_tool_is_read(qwen: Model) -> None:
    turn = (await qwen.complete(ASKED.model_copy(update={"tool_choice": "get_weather"}))).message
    result = Message.tool(turn.tool_calls[0].id, "It is snowing, 3 degrees below zero.")
    request = ASKED.model_copy(update={"messages": (*ASKED.messages, turn, result), "tool_choice": "none"})
    assert "snow" in (await qwen.complete(request)).text


@pytest.mark.slow
async def test_with_tools_and_a_format_it_calls_or_keeps_to_the_format(qwen: Model) -> None:
    form = JsonFormat(
        json_schema={
            "type": "object",
            "properties": {"sum": {"$ref": "#/$defs/N"}},
            "required": ["sum"],
            "additionalProperties": False,
            "$defs": {"N": {"type": "integer", "maximum": 99}},
        }
    )
    request = asking("Add 2 and 3.", form=form, max_tokens=60).model_copy(update={"tools": (WEATHER,)})
    reply = await qwen.complete(request)
    assert reply.message.tool_calls or set(json.loads(reply.text)) == {"sum"}


def test_models_share_an_engine_unless_it_has_another_name(tmp_path: Path) -> None:
    setups = [
        EngineSetup(tmp_path / "w.gguf", None, context=64, parallel=1, threads=1, name=name) for name in ("", "", "own")
    ]
    first, same, own = leased = [engines.lease(setup) for setup in setups]
    assert first is same
    assert own is not first
    for engine in leased:
        engines.release(engine)
