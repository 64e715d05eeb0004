"""MCP servers as tools of workers, over stdio and streamable HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError
from mcp.server.mcpserver import MCPServer as Server
from mcp_types import CONNECTION_CLOSED, CallToolResult, TextContent
from starlette.responses import RedirectResponse

import mcp_faults
import mcp_shop
from core.runs import SOON, plan
from rl_conductor import Conductor, ConfigError, Limits, ScriptedModel, Trace, Worker, WorkerPool
from rl_conductor.agents import MCPServer, ToolError, ToolLoopModel, ToolSourceError, mcp_connection
from rl_conductor.agents.mcp_connection import MCPConnection
from rl_conductor.agents.mcp_server import MAX_TOOLS
from rl_conductor.agents.tool import MAX_RESULT_CHARS
from rl_conductor.errors import RunError
from rl_conductor.models.http.reply_limit import MAX_REPLY_BYTES
from rl_conductor.types import Message, Request, ToolCall

ALONE = plan((0, "Do it.", []))
SECRET = "abcdefgh-0123456789"
PROGRAM = [sys.executable, mcp_shop.__file__]


@pytest.fixture(scope="module")
def shop() -> Iterator[mcp_shop.Site]:
    """The shop over HTTP."""
    with mcp_shop.serve(mcp_shop.http_app()) as site:
        yield site


def call(name: str, **arguments: Any) -> Message:
    return Message.assistant(tool_calls=[ToolCall(id="1", name=name, arguments=json.dumps(arguments))])


async def run(*tools: Any, script: list[Any], limits: Limits | None = None, **others: Any) -> Trace:
    """Runs a plan of one step with a worker that has these tools, and closes everything."""
    pool = {"w": {"model": ScriptedModel(script), "tools": list(tools)}, **others}
    conductor = Conductor(ScriptedModel([ALONE]), WorkerPool(pool), limits=limits)
    try:
        return await conductor.run("How many pens?")
    finally:
        await conductor.aclose()


def uses(trace: Trace) -> list[tuple[str, str, bool]]:
    nested = trace.rounds[0].results[0].calls[0].nested
    return [(use.name, use.result, use.is_error) for use in nested.tools] if nested else []


async def result_of(server: MCPServer, name: str, arguments: str = "{}") -> str:
    try:
        (tool,) = (tool for tool in await server.list_tools() if tool.definition.name == name)
        return await tool.run(arguments)
    finally:
        await server.aclose()


async def test_a_program_is_started_used_and_ended() -> None:
    server = MCPServer(PROGRAM, env={"SHOP_TOKEN": SECRET}, only=["stock", "token", "crash"])
    tools = {tool.definition.name: tool for tool in await server.list_tools()}
    assert set(tools) == {"stock", "token", "crash"}
    assert tools["stock"].definition.description == "Counts the pieces of an item in stock."
    assert tools["stock"].definition.parameters["required"] == ["item"]
    assert await tools["stock"].run('{"item": "pen"}') == "pen: 17 online"
    assert await tools["token"].run("{}") == "the token is [secret]"

    with pytest.raises(ToolSourceError, match=r"MCP server python.*: .*; the end of its stderr: out of paper"):
        await tools["crash"].run("{}")
    again = await server.list_tools()
    assert await again[0].run('{"item": "ink"}') == "ink: 17 online", "it is started again"

    await server.aclose()
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


def test_a_program_ends_with_the_event_loop(tmp_path: Path) -> None:
    file = tmp_path / "ended"
    program = (
        f"import runpy, sys\nsys.argv = {PROGRAM[1:]!r}\nrunpy.run_path(sys.argv[0], run_name='__main__')\n"
        f"open({str(file)!r}, 'w')"
    )

    async def use_without_closing() -> None:
        await MCPServer([sys.executable, "-c", program]).list_tools()

    asyncio.run(use_without_closing())
    assert file.exists(), "its stdin was closed and it was waited for"


async def test_a_worker_uses_a_server_by_its_url(shop: mcp_shop.Site) -> None:
    def add(left: int, right: int) -> int:
        """Adds."""
        return left + right

    script = [call("stock", item="pen"), call("add", left=17, right=1), "There are 18."]
    trace = await run(add, shop.url, script=script)

    assert trace.text == "There are 18."
    assert uses(trace) == [("stock", "pen: 17 online", False), ("add", "18", False)]
    assert trace.usage.calls == 4


def test_the_planner_reads_the_names_of_servers_and_nothing_that_they_say() -> None:
    def add() -> None:
        """Adds."""

    def description(*tools: Any) -> str:
        return Worker.of("w", ScriptedModel("x"), tools=tools).card.description

    url = "http://127.0.0.1:9/mcp"
    shop, bank = MCPServer(url=url, name="shop"), MCPServer(url=url, name="bank")
    assert description(shop) == "has the tools of the MCP server shop"
    assert (
        description(add, shop, bank) == "has the tools add and those of the MCP server shop and of the MCP server bank"
    )
    assert description(MCPServer(url=url, only=["price.list", "a"], prefix="s_")) == "has the tools s_a, s_price_list"


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("price_list", "{}", '{\n  "pen": 3\n}'),
        ("photo", "{}", "[image not shown]"),
        ("empty", "{}", ""),
        ("stock", '{"item": "pen", "shop": "Rome"}', "pen: 17 Rome"),
    ],
)
async def test_results_are_text(shop: mcp_shop.Site, name: str, arguments: str, result: str) -> None:
    assert await result_of(MCPServer(url=shop.url), name, arguments) == result


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("refuse", "{}", "Error executing tool refuse"),
        ("stock", '{"itm": "pen"}', "item\n  Field required"),
        ("stock", "[1]", "not a JSON object"),
        ("stock", "{", "not JSON"),
        ("stock", f'"{"x" * 200_000}"', "at most 100,000 allowed"),
    ],
)
async def test_errors_of_tools_are_for_the_model(shop: mcp_shop.Site, name: str, arguments: str, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        await result_of(MCPServer(url=shop.url), name, arguments)


async def test_long_results_are_cut(shop: mcp_shop.Site) -> None:
    model = ScriptedModel([call("flood"), "Enough."])
    worker = ToolLoopModel(model, [shop.url])
    await worker.complete(Request.user("Go."))
    await worker.aclose()
    assert len(model.requests[-1].messages[-1].text) < 1.01 * MAX_RESULT_CHARS


async def test_a_tool_that_takes_too_long_is_given_up_and_the_connection_stays(shop: mcp_shop.Site) -> None:
    server = MCPServer(url=shop.url)
    tools = {tool.definition.name: tool for tool in await server.list_tools()}
    server.timeout = 0.05
    with pytest.raises(ToolError, match=r"no result within 0\.05 s"):
        await tools["wait"].run("{}")
    server.timeout = SOON
    assert await tools["stock"].run('{"item": "pen"}') == "pen: 17 online"
    assert server._connections.get() is tools["stock"]._connection
    await server.aclose()


async def test_the_deadline_of_a_run_reaches_tools(shop: mcp_shop.Site) -> None:
    with pytest.raises(RunError, match=r"limits\.seconds=0\.5 was over"):
        await run(shop.url, script=[call("wait"), "Never."], limits=Limits(seconds=0.5))


async def test_a_cancelled_run_leaves_the_connection_to_others(shop: mcp_shop.Site) -> None:
    server = MCPServer(url=shop.url)
    mcp_shop.waiting.clear()
    (wait,) = (tool for tool in await server.list_tools() if tool.definition.name == "wait")
    task = asyncio.create_task(wait.run("{}"))
    await asyncio.wait_for(asyncio.to_thread(mcp_shop.waiting.wait), SOON)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await result_of(server, "stock", '{"item": "pen"}') == "pen: 17 online"


async def test_a_tool_of_a_closed_server_does_not_open_it_again(shop: mcp_shop.Site) -> None:
    server = MCPServer(url=shop.url)
    (stock,) = (tool for tool in await server.list_tools() if tool.definition.name == "stock")
    await server.aclose()
    with pytest.raises(ToolSourceError, match="it was closed while a worker used it"):
        await stock.run('{"item": "pen"}')
    assert await result_of(server, "stock", '{"item": "pen"}') == "pen: 17 online"


async def test_runs_on_one_event_loop_share_a_connection(shop: mcp_shop.Site) -> None:
    server = MCPServer(url=shop.url)
    lists = await asyncio.gather(*(server.list_tools() for _ in range(3)))
    assert len({id(tools[0]._connection) for tools in lists}) == 1
    await server.aclose()


async def test_an_unreachable_server_fails_the_step_and_another_worker_takes_over() -> None:
    trace = await run("http://127.0.0.1:9/mcp", script=["Never."], spare=ScriptedModel("About 17."))

    assert trace.text == "About 17."
    (step,) = trace.rounds[0].results
    assert step.error is not None
    assert step.error.startswith("w: MCP server 127.0.0.1:9/mcp: ")
    assert step.step.worker == "spare"


async def test_a_server_that_is_lost_during_a_call_fails_the_step() -> None:
    app = Server("mortal", log_level="CRITICAL")
    with mcp_shop.serve(app.streamable_http_app()) as site:

        async def die() -> str:
            """Drops all connections."""
            assert site.server is not None
            for connection in site.server.server_state.connections:
                connection.transport.abort()
            return "never received"

        app.add_tool(die)
        trace = await run(site.url, script=[call("die"), "Never."], spare=ScriptedModel("About 17."))

    assert trace.text == "About 17."
    ((name, result, is_error),) = uses(trace)
    assert (name, is_error) == ("die", True)
    assert "MCP server" in result
    assert not trace.rounds[0].results[0].calls[0].retryable


async def test_a_late_error_of_a_lost_connection_leaves_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gates = {name: asyncio.Event() for name in ("first", "late", "new")}
    owners: list[asyncio.Event] = []

    class FakeClient:
        async def call_tool(self, name: str, *_: Any, **__: Any) -> CallToolResult:
            await gates[name].wait()
            if name != "new":
                raise MCPError(CONNECTION_CLOSED, "gone")
            return CallToolResult(content=[TextContent(type="text", text="a result")])

    async def own(_: MCPConnection, ready: asyncio.Future[Any], stop: asyncio.Event) -> None:
        owners.append(stop)
        ready.set_result(FakeClient())
        await stop.wait()

    monkeypatch.setattr(MCPConnection, "_own", own)
    connection = MCPConnection(MCPServer(url="http://localhost/mcp"))
    lost = [asyncio.create_task(connection.call(name, {})) for name in ("first", "late")]
    await asyncio.sleep(0)
    gates["first"].set()
    with pytest.raises(ToolSourceError):
        await lost[0]
    new = asyncio.create_task(connection.call("new", {}))
    await asyncio.sleep(0.01)
    gates["late"].set()
    with pytest.raises(ToolSourceError):
        await lost[1]
    assert [stop.is_set() for stop in owners] == [True, False]
    gates["new"].set()
    assert await new == ("a result", False)
    await connection.aclose()


def test_variables_that_are_no_secrets_stay_readable_in_results() -> None:
    server = MCPServer(PROGRAM, env={"SHOP_REGION": "us-east-1", "STAGE": "production", "SHOP_TOKEN": SECRET})
    assert server.redact(f"production in us-east-1 with {SECRET}") == "production in us-east-1 with [secret]"


async def test_secrets_are_sent_to_the_server_only(shop: mcp_shop.Site) -> None:
    shop.headers.clear()
    server = MCPServer(url=shop.url, headers={"Authorization": f"Bearer {SECRET}"})
    await result_of(server, "stock", '{"item": "pen"}')
    assert {headers["authorization"] for headers in shop.headers} == {f"Bearer {SECRET}"}
    assert SECRET not in repr(vars(server))

    with pytest.raises(ToolSourceError) as caught:
        await MCPServer([sys.executable, mcp_shop.__file__, "--broken"], env={"SHOP_TOKEN": SECRET}).list_tools()
    assert "no shop for [secret]" in str(caught.value)
    with pytest.raises(ToolSourceError) as caught:
        await MCPServer(url=f"http://user:{SECRET}@127.0.0.1:9/mcp?key={SECRET}").list_tools()
    assert SECRET not in str(caught.value)


async def test_secrets_in_an_address_are_in_no_log_and_in_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def redirect(scope: Any, receive: Any, send: Any) -> None:
        address = f"http://elsewhere.example/mcp?{scope['query_string'].decode()}"
        await RedirectResponse(address)(scope, receive, send)

    with mcp_shop.serve(redirect) as site:
        server = MCPServer(url=f"{site.url}?apiKey={SECRET}".replace("://", "://me:pass-word@"))
        with pytest.raises(ToolSourceError, match=r"Redirect to http://elsewhere\.example/mcp not followed") as caught:
            await server.list_tools()
        await server.aclose()
    shown = [str(caught.value), *(record.getMessage() for record in caplog.records)]
    assert any("HTTP Request: POST" in text for text in shown)
    assert not any(SECRET in text or "pass-word" in text for text in shown)


async def test_lines_that_are_no_messages_are_counted_and_show_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    server = MCPServer([sys.executable, mcp_faults.__file__, "broken result"], timeout=SOON)
    (tool,) = await server.list_tools()
    server.timeout = 0.5
    with pytest.raises(ToolError, match=r"^no result within 0.5 s; 2 of its messages or lines broke the protocol$"):
        await tool.run("{}")
    await server.aclose()
    assert not [record for record in caplog.records if record.levelno >= logging.INFO]


async def test_a_line_that_is_no_utf_8_costs_no_result() -> None:
    server = MCPServer([sys.executable, mcp_faults.__file__, "Latin-1"], timeout=SOON)
    assert await result_of(server, "clock") == ""


async def test_a_list_of_tools_that_goes_on_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MCPServer([sys.executable, mcp_faults.__file__, "slow pages"])
    assert len(await server.list_tools()) == 4
    monkeypatch.setattr(mcp_connection, "CONNECT_TIMEOUT", 0.5)
    with pytest.raises(ToolSourceError, match=r"no reply within 0\.5 s"):
        await server.list_tools()
    await server.aclose()


async def test_tools_that_can_not_be_offered_are_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    server = MCPServer([sys.executable, mcp_faults.__file__, "invalid tools"], timeout=SOON)
    for _ in range(2):
        assert [tool.definition.name for tool in await server.list_tools()] == ["clock", "old", "deep"]
    await server.aclose()
    assert [record.getMessage().removeprefix(f"{server.title}: ") for record in caplog.records] == [
        f"tool {name!r} can't be offered: {reason}; its other tools are used"
        for name, reason in {
            "gong": "its inputSchema is missing",
            "bell": "the type of its inputSchema is 'string', not 'object'",
            "horn": "its inputSchema is invalid: 'tone' is not valid under any of the given schemas "
            "(at $.properties.tone.type)",
            "book": "its inputSchema has 30,037 characters; at most 20,000 are allowed",
            "": "it has no name",
        }.items()
    ]


async def test_a_page_without_tools_that_can_be_offered_does_not_end_the_list(caplog: pytest.LogCaptureFixture) -> None:
    server = MCPServer([sys.executable, mcp_faults.__file__, "invalid pages"], timeout=SOON)
    assert [tool.definition.name for tool in await server.list_tools()] == ["clock"]
    await server.aclose()
    assert [name for name in ("gong", "bell") if f"tool {name!r} can't be offered" in caplog.text] == ["gong", "bell"]


@pytest.mark.parametrize(("fault", "only"), [("no schema", None), ("invalid tools", ["clock", "gong"])])
async def test_a_server_of_which_no_tool_or_not_a_selected_one_can_be_offered_can_not_be_used(
    fault: str, only: list[str] | None
) -> None:
    server = MCPServer([sys.executable, mcp_faults.__file__, fault], only=only)
    with pytest.raises(ToolSourceError, match=r"tool 'gong' can't be offered: its inputSchema is missing$"):
        await server.list_tools()
    await server.aclose()


async def test_a_missing_program_is_named() -> None:
    with pytest.raises(
        ToolSourceError, match=r"MCP server no-such-program: there is no program 'no-such-program'; install it"
    ):
        await MCPServer(["no-such-program"]).list_tools()


async def test_names_that_clash_or_are_missing_are_errors_and_a_prefix_helps(shop: mcp_shop.Site) -> None:
    def stock() -> str:
        return "none"

    with pytest.raises(RunError, match="two tools are called 'stock'"):
        await run(stock, shop.url, script=["Never."])
    trace = await run(stock, MCPServer(url=shop.url, prefix="shop_"), script=[call("shop_stock", item="pen"), "17."])
    assert uses(trace) == [("shop_stock", "pen: 17 online", False)]
    with pytest.raises(RunError, match=r"it has no tool 'stok', which only=\.\.\. names"):
        await run(MCPServer(url=shop.url, only=["stok"]), script=["Never."])


async def test_what_a_server_says_is_bounded() -> None:
    async def offered(*tools: tuple[str, str]) -> list[Any]:
        app = Server("huge", log_level="CRITICAL")
        for name, description in tools:
            app.add_tool(lambda: "", name=name, description=description)
        with mcp_shop.serve(app.streamable_http_app()) as site:
            server = MCPServer(url=site.url)
            try:
                return [tool.definition for tool in await server.list_tools()]
            finally:
                await server.aclose()

    (tool,) = await offered(("x" * 100, "y" * 50_000))
    assert (len(tool.name), tool.description.count("y")) == (64, 4_000)
    with pytest.raises(ToolSourceError, match="more than 128 tools"):
        await offered(*((f"tool_{number}", "") for number in range(MAX_TOOLS + 1)))


async def test_a_reply_that_is_too_large_is_an_error_that_says_so() -> None:
    app = Server("huge", log_level="CRITICAL")
    app.add_tool(lambda: "x" * (MAX_REPLY_BYTES + 1), name="flood")
    with mcp_shop.serve(app.streamable_http_app(json_response=True)) as site:
        server = MCPServer(url=site.url)
        (flood,) = await server.list_tools()
        with pytest.raises(ToolSourceError, match=r"the reply is larger than 8,388,608 bytes"):
            await flood.run("{}")
        await server.aclose()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs a command"),
        ({"command": "uvx x"}, "needs a command"),
        ({"command": ["x"], "url": "http://x/mcp"}, "not both"),
        ({"url": "ftp://x/mcp"}, "begins with http"),
        ({"url": "http://[x/mcp"}, "begins with http"),
        ({"url": "http://x/mcp", "env": {"A": "b"}}, "leave out the other one"),
        ({"command": ["x"], "headers": {"A": "b"}}, "headers to a url"),
        ({"command": ["x"], "only": []}, "write one, or leave it out"),
        ({"command": ["x"], "timeout": 0}, "write the seconds"),
    ],
)
def test_invalid_servers_are_refused_with_what_to_write(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MCPServer(**arguments)


async def test_a_pool_file_names_servers_and_the_variables_with_their_secrets(
    shop: mcp_shop.Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("SHOP_TOKEN", SECRET)
    file = tmp_path / "pool.toml"
    file.write_text(f"""
        [workers.clerk]
        model = "openai:gpt-6-sol"
        tools = ["{shop.url}"]
        [workers.clerk.mcp.local]
        command = {json.dumps(PROGRAM)}
        env = ["SHOP_TOKEN"]
        only = ["token"]
        prefix = "local_"
        [workers.clerk.mcp.remote]
        url = "{shop.url}"
        api_key_env = "SHOP_TOKEN"
        headers_env = {{ X-Shop = "SHOP_TOKEN" }}
        prefix = "remote_"
    """)
    shop.headers.clear()

    model = WorkerPool.from_toml(file)["clerk"].model
    assert isinstance(model, ToolLoopModel)
    tools = await model.tools.list_tools()
    assert {"stock", "local_token", "remote_stock"} <= set(tools)
    assert "local_stock" not in tools
    assert await tools["local_token"].run("{}") == "the token is [secret]"
    await model.aclose()
    sent = {(headers.get("authorization"), headers.get("x-shop")) for headers in shop.headers}
    assert sent == {(None, None), (f"Bearer {SECRET}", SECRET)}


@pytest.mark.parametrize("value", [None, " "])
def test_a_pool_file_says_which_variable_is_missing(
    value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    if value is not None:
        monkeypatch.setenv("NO_VALUE", value)
    file = tmp_path / "pool.toml"
    file.write_text('[workers.w]\nmodel = "openai:m"\nmcp.shop = { url = "http://x/mcp", api_key_env = "NO_VALUE" }\n')
    with pytest.raises(ConfigError, match="MCP server 'shop': the environment variable NO_VALUE is not set"):
        WorkerPool.from_toml(file)
