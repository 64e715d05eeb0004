"""Workers with tools of their own: Python functions that a model calls in a bounded loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from core.runs import busy, down, plan
from rl_conductor import Conductor, ConfigError, LimitError, Limits, Price, ScriptedModel, Tool, Trace, Worker
from rl_conductor.agents import FunctionTool, ToolError, ToolLoopModel
from rl_conductor.agents.tool import MAX_RESULT_CHARS
from rl_conductor.agents.tool_loop import MAX_CALLS_PER_ROUND
from rl_conductor.calls.nested_records import MAX_TEXT_CHARS
from rl_conductor.errors import ModelError, RunError, ScriptError
from rl_conductor.models import Capabilities
from rl_conductor.models.replies.size import ReplySize
from rl_conductor.models.scripted import Scripted
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.types import Completion, Message, Request, ToolCall, Usage

ALONE = plan((0, "Do it.", []))
PRICE = Price(input=Decimal(1_000_000), output=Decimal(0))


def add(left: int, right: Annotated[int, Field(description="the second number")] = 1) -> int:
    """Adds two numbers."""
    return left + right


async def fetch(key: str) -> dict[str, str]:
    """Fetches a value."""
    if key == "secret":
        raise PermissionError("not allowed")
    return {key: "value"}


def call(name: str, **arguments: Any) -> Message:
    return calls((name, arguments))


def calls(*pairs: tuple[str, dict[str, Any]]) -> Message:
    made = [ToolCall(id=str(i), name=name, arguments=json.dumps(args)) for i, (name, args) in enumerate(pairs)]
    return Message.assistant(tool_calls=made)


def results(request: Request) -> list[str]:
    return [message.text for message in request.messages if message.role == "tool"]


async def run(model: ScriptedModel, *tools: Callable[..., Any], limits: Limits | None = None) -> Trace:
    made = Conductor(ScriptedModel([ALONE]), WorkerPool([Worker.of("w", model, tools=tools)]), limits=limits)
    return await made.run("What is it?")


async def test_a_worker_calls_its_tools_until_it_answers() -> None:
    model = ScriptedModel([call("add", left=2, right=3), calls(("fetch", {"key": "a"}), ("add", {"left": 1})), "Done."])

    trace = await run(model, add, fetch)

    assert trace.text == "Done."
    assert trace.usage.calls == 4, "one plan, three calls of the worker"
    assert results(model.requests[-1]) == ["5", '{"a":"value"}', "2"]
    (record,) = trace.rounds[0].results[0].calls
    assert record.nested is not None
    assert [inner.outcome for inner in record.nested.calls] == ["ok"] * 3
    assert [(use.name, use.result) for use in record.nested.tools] == [
        ("add", "5"),
        ("fetch", '{"a":"value"}'),
        ("add", "2"),
    ]
    assert record.usage == record.nested.calls[0].usage + record.nested.calls[1].usage + record.nested.calls[2].usage
    assert Trace.model_validate_json(trace.model_dump_json()) == trace


async def test_the_model_reads_name_docstring_and_types_of_a_function() -> None:
    model = ScriptedModel("Done.")
    await run(model, add)

    (tool,) = model.requests[0].tools
    assert (tool.name, tool.description) == ("add", "Adds two numbers.")
    assert tool.parameters["required"] == ["left"]
    assert tool.parameters["properties"]["left"]["type"] == "integer"
    assert tool.parameters["properties"]["right"]["description"] == "the second number"


async def test_texts_that_a_tool_yields_are_one_result_and_an_object_that_is_no_data_is_an_error() -> None:
    async def spell(word: str) -> AsyncIterator[str]:
        for letter in word:
            yield letter

    def connect() -> object:
        return object()

    model = ScriptedModel([calls(("spell", {"word": "kite"}), ("connect", {})), "Done."])
    await run(model, spell, connect)
    assert results(model.requests[-1]) == [
        "kite",
        "error: the tool returned an object of the type object, which is no data",
    ]


@pytest.mark.parametrize(
    ("bad_call", "message"),
    [
        (calls(("add", {"left": "many"})), "invalid arguments: left: "),
        (calls(("add", {"left": 1, "other": 2})), "invalid arguments: other: "),
        (Message.assistant(tool_calls=[ToolCall(id="0", name="add", arguments="{")]), "invalid arguments: "),
        (calls(("add", {"left": 1, "right": [0] * 100_000})), "at most 100,000 allowed"),
        (calls(("fetch", {"key": "secret"})), "error: PermissionError: not allowed"),
    ],
)
async def test_errors_are_returned_to_the_model(bad_call: Message, message: str) -> None:
    model = ScriptedModel([bad_call, "I see."])

    trace = await run(model, add, fetch)

    assert trace.text == "I see."
    (result,) = results(model.requests[-1])
    assert result.startswith("error: ")
    assert message in result
    nested = trace.rounds[0].results[0].calls[0].nested
    assert nested is not None
    assert nested.tools[0].is_error


async def test_a_tool_that_exits_returns_an_error_to_the_model() -> None:
    def leave() -> str:
        raise SystemExit(3)

    model = ScriptedModel([call("leave"), "I see."])
    assert (await run(model, leave)).text == "I see."
    assert results(model.requests[-1]) == ["error: SystemExit: 3"]


async def test_a_model_that_never_stops_calling_tools_has_to_answer() -> None:
    def reply(request: Request) -> Scripted:
        return "Enough." if request.tool_choice == "none" else call("add", left=1)

    model = ScriptedModel(reply)
    assert (await run(model, add)).text == "Enough."
    assert len(model.requests) == 9
    assert model.requests[-1].tools, "some vendors reject tool messages without tools"


async def test_a_model_that_calls_tools_to_the_end_fails_its_step() -> None:
    model = ScriptedModel(lambda _: call("add", left=1))
    with pytest.raises(RunError, match="it called a tool although it could not, and wrote no answer"):
        await run(model, add)
    assert len(model.requests) == 9, "the loop is not retried"


async def test_many_calls_at_once_and_long_results_are_bounded() -> None:
    def long(_: int) -> str:
        return "x" * 10 * MAX_RESULT_CHARS

    model = ScriptedModel([calls(*(("long", {"_": i}) for i in range(20))), "Done."])
    trace = await run(model, long)

    texts = results(model.requests[-1])
    assert len(texts) == 20
    assert all(len(text) < 1.01 * MAX_RESULT_CHARS for text in texts)
    assert all("can be called at once" in text for text in texts[MAX_CALLS_PER_ROUND:])
    nested = trace.rounds[0].results[0].calls[0].nested
    assert nested is not None
    assert all(len(use.result) < 1.1 * MAX_TEXT_CHARS for use in nested.tools)


async def test_each_call_is_budgeted() -> None:
    def reply(_: Request) -> Completion:
        return Completion(message=call("add", left=1), usage=Usage(input_tokens=10, calls=1), model="m")

    model = ScriptedModel(reply)
    with pytest.raises(RunError, match=r"limits\.calls=3") as caught:
        await run(model, add, limits=Limits(calls=3))
    assert len(model.requests) == 2, "the plan was the first of the three calls"
    trace = caught.value.trace
    assert trace.usage.calls == 3
    nested = trace.rounds[0].results[0].calls[0].nested
    assert nested is not None
    assert [inner.outcome for inner in nested.calls] == ["ok", "ok", "refused"]


async def test_calls_are_retried_one_by_one_and_tools_run_once() -> None:
    ran: list[int] = []

    def count(number: int) -> None:
        """Counts."""
        ran.append(number)

    model = ScriptedModel([call("count", number=1), busy(Request(messages=())), "Done."])
    assert (await run(model, count)).text == "Done."
    assert ran == [1]


async def test_a_failure_after_a_tool_is_not_retried_but_its_usage_counts() -> None:
    model = ScriptedModel([call("add", left=1), down(Request(messages=()))])
    with pytest.raises(RunError) as caught:
        await run(model, add)
    assert caught.value.trace.usage.calls == 3
    error = caught.value.trace.rounds[0].results[0].calls[0]
    assert not error.retryable


async def test_a_call_of_the_callers_tool_is_returned_to_the_caller() -> None:
    weather = Tool(name="weather", description="the weather")
    model = ScriptedModel([call("add", left=1), calls(("weather", {}), ("add", {"left": 2}))])
    made = Conductor(ScriptedModel([ALONE]), WorkerPool([Worker.of("w", model, tools=[add])]))

    completion = await made.complete(Request(messages=(Message.user("hi"),), tools=(weather,)))

    assert [tool.name for tool in completion.message.tool_calls] == ["weather"]
    assert completion.message.continuation is not None
    assert [tool.name for tool in model.requests[0].tools] == ["add", "weather"]


async def test_a_callers_tool_of_the_same_name_replaces_the_workers() -> None:
    model = ScriptedModel([call("add", left=1)])
    request = Request(messages=(Message.user("hi"),), tools=(Tool(name="add", description="the caller's"),))

    completion = await ToolLoopModel(model, [add]).complete(request)

    assert [tool.description for tool in model.requests[0].tools] == ["the caller's"]
    assert completion.message.tool_calls


async def test_a_conductor_inside_a_tool_is_recorded_and_counted_once() -> None:
    inner = Conductor(ScriptedModel([plan((0, "Inner.", []))]), {"a": ScriptedModel("deep")})

    async def ask(question: str) -> str:
        """Asks a team."""
        return (await inner.run(question)).text

    trace = await run(ScriptedModel([call("ask", question="Why?"), "Done."]), ask, limits=Limits(calls=5))

    assert trace.usage.calls == 5
    nested = trace.rounds[0].results[0].calls[0].nested
    assert nested is not None
    assert [run.rounds[0].results[0].text for run in nested.runs] == ["deep"]
    assert nested.tools[0].result == "deep"


async def test_concurrency_limits_the_calls_of_the_model() -> None:
    model = ScriptedModel(lambda _: "ok", delay=0.01)
    pool = WorkerPool([Worker.of("w", model, tools=[add], concurrency=1)])
    steps = plan((0, "a", []), (0, "b", []), (0, "c", ["all"]))
    await Conductor(ScriptedModel([steps]), pool).run("Go.")
    assert model.peak == 1


async def test_tools_of_other_kinds_implement_a_protocol() -> None:
    class RemoteTool:
        definition = Tool(name="remote", description="runs elsewhere")

        async def run(self, arguments: str) -> str:
            if arguments != "{}":
                raise ToolError("no arguments are allowed")
            return "from elsewhere"

    model = ScriptedModel([calls(("remote", {}), ("remote", {"x": 1})), "Done."])
    completion = await ToolLoopModel(model, [RemoteTool()]).complete(Request.user("hi"))
    assert completion.text == "Done."
    assert results(model.requests[-1]) == ["from elsewhere", "error: no arguments are allowed"]


def test_the_planner_reads_which_tools_a_worker_has() -> None:
    assert Worker.of("w", ScriptedModel("x"), tools=[add, fetch]).card.description == "has the tools add, fetch"
    assert Worker.of("w", ScriptedModel("x"), tools=[add], description="sums").card.description == "sums"


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([add, add], "two tools are called 'add'"),
        ([lambda x: x], "has no name"),
        ([lambda *x: x], "has no name"),
        (["json"], "write 'module:name'"),
        (["no_such_module_at_all:f"], "can't be imported"),
        (["json:nothing"], "module 'json' has no 'nothing'"),
        ([3], "is not a function"),
    ],
)
def test_invalid_tools_are_refused_with_what_to_write(tools: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Worker.of("w", ScriptedModel("x"), tools=tools)


def test_parameters_need_fixed_names_and_known_types() -> None:
    def variadic(*numbers: int) -> int:
        return sum(numbers)

    def odd(thing: ScriptedModel) -> None:
        del thing

    def callback(thing: Callable[[], int]) -> None:
        del thing

    with pytest.raises(ConfigError, match="'numbers' accepts any arguments"):
        FunctionTool(variadic)
    with pytest.raises(ConfigError, match="'dict' has no signature; wrap it in a function"):
        FunctionTool(dict)
    for function in (odd, callback):
        with pytest.raises(ConfigError, match="has no JSON schema"):
            FunctionTool(function)


async def test_parameters_may_have_any_name() -> None:
    def odd(schema: int, model_config: str = "x", _private: bool = False) -> str:
        return f"{schema} {model_config} {_private}"

    tool = FunctionTool(odd)
    assert await tool.run('{"schema": 1, "_private": true}') == "1 x True"
    with pytest.raises(ToolError, match="schema: missing"):
        await tool.run("{}")


def test_a_model_without_tool_calls_is_refused() -> None:
    with pytest.raises(ConfigError, match="worker 'w': scripted:scripted can't call tools"):
        Worker.of("w", ScriptedModel("x", capabilities=Capabilities()), tools=[add])
    with pytest.raises(ConfigError, match="max_tool_rounds=0"):
        ToolLoopModel(ScriptedModel("x"), [add], max_tool_rounds=0)


async def test_tools_in_a_pool_file_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_pool_tools.py").write_text(
        "def double(number: int) -> int:\n    '''Doubles.'''\n    return 2 * number\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    file = tmp_path / "pool.toml"
    file.write_text('[workers.w]\nmodel = "openai:gpt-6-sol"\ntools = ["my_pool_tools:double"]\n')

    model = WorkerPool.from_toml(file)["w"].model
    assert isinstance(model, ToolLoopModel)
    assert await model.tools.tools[0].run('{"number": 4}') == "8"
    await model.aclose()


def test_a_mapping_takes_functions_as_tools() -> None:
    pool = WorkerPool({"w": {"model": ScriptedModel("x"), "tools": [add], "strengths": "sums"}})
    assert isinstance(pool["w"].model, ToolLoopModel)
    assert pool["w"].card.strengths == "sums"


async def test_a_scripted_model_inside_a_tool_that_has_no_reply_left_fails_the_test() -> None:
    inner = ScriptedModel([])

    async def ask() -> str:
        """Asks another model."""
        return (await inner.complete(Request.user("?"))).text

    with pytest.raises(ScriptError):
        await run(ScriptedModel([call("ask"), "done"]), ask)


async def test_errors_of_limits_reach_the_run_unchanged() -> None:
    model = ScriptedModel([call("add", left=1)], delay=0.2)
    with pytest.raises((ModelError, LimitError, RunError)):
        await run(model, add, limits=Limits(seconds=0.1))


async def test_tools_that_had_run_are_recorded_when_the_run_is_interrupted() -> None:
    paid: list[int] = []

    def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    async def wait() -> str:
        await asyncio.Event().wait()
        return "never"

    model = ScriptedModel([calls(("pay", {"amount": 5}), ("wait", {}))])
    with pytest.raises(RunError) as error:
        await run(model, pay, wait, limits=Limits(seconds=1.0))
    assert paid == [5]
    (record,) = error.value.trace.rounds[0].results[0].calls
    assert record.nested is not None
    assert [(use.name, use.result, use.is_error) for use in record.nested.tools] == [
        ("pay", "paid", False),
        ("wait", "interrupted", True),
    ]


async def test_a_tool_that_cancels_itself_has_failed_and_the_run_goes_on() -> None:
    async def give_up() -> str:
        raise asyncio.CancelledError

    model = ScriptedModel([call("give_up"), "Done."])
    trace = await run(model, give_up)
    assert trace.text == "Done."
    assert "CancelledError" in results(model.requests[-1])[0]


@pytest.mark.parametrize("has_tools", [False, True])
async def test_a_limit_on_the_length_of_replies_holds_inside_of_workers(has_tools: bool) -> None:
    class Endless(ScriptedModel):
        """Counts its own text, like the adapters of vendors."""

        async def complete(self, request: Request) -> Completion:
            size = ReplySize(self.name)
            size.add("x" * 5_000, "")
            return await super().complete(request)

    endless = Endless("x" * 5_000)
    inner = Worker.of("w", endless, tools=[add]) if has_tools else Worker.of("w", endless)
    outer = Worker.of("team", Conductor(ScriptedModel(ALONE), WorkerPool([inner])))
    conductor = Conductor(ScriptedModel(ALONE), WorkerPool([outer]), limits=Limits(reply_chars=1_000))
    with pytest.raises(RunError, match=r"limits\.reply_chars=1000 is used up"):
        await conductor.run("What is it?")
