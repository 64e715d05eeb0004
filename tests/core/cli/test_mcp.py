"""`mcp`: a conductor as an MCP server, used by the SDK's own client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from typer.testing import Result

import mcp_shop
from core.cli.pens import team
from core.runs import SOON, down, plan
from rl_conductor import Conductor, Limits, Model, ScriptedModel
from rl_conductor.agents import MCPServer, ToolSourceError
from rl_conductor.cli.commands.mcp.server import conductor_server, http_app
from rl_conductor.cli.serving.http import listen
from rl_conductor.types import Completion, Request


async def ask(conductor: Conductor, **arguments: Any) -> tuple[Any, list[str]]:
    """The result of the tool `ask`, and the messages of its progress."""
    messages: list[str] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        assert progress == len(messages) + 1
        messages.append(message or "")

    async with Client(conductor_server(conductor)) as client:
        result = await client.call_tool("ask", {"question": "How many?", **arguments}, progress_callback=progress)
    return result, messages


async def test_the_answer_comes_with_steps_cost_and_progress() -> None:
    result, messages = await ask(team())

    assert [part.text for part in result.content] == ["17 pens."]
    assert not result.is_error
    summary = result.structured_content["summary"]
    assert (result.structured_content["answer"], summary["error"]) == ("17 pens.", None)
    assert (summary["usage"]["calls"], summary["usage"]["cost"], summary["usage"]["unpriced_calls"]) == (
        3,
        "0.00201",
        0,
    )
    assert [(step["worker"], step["subtask"], step["status"]) for step in summary["rounds"][0]["steps"]] == [
        ("look", "Look it up.", "ok"),
        ("final", "Answer.", "ok"),
    ]
    assert messages == [
        "planned 2 steps",
        "step 1: look started",
        "step 1: look ok",
        "step 2: final started",
        "step 2: final ok",
    ]


async def test_a_client_reads_what_the_tool_takes_and_returns() -> None:
    async with Client(conductor_server(team())) as client:
        (tool,) = (await client.list_tools()).tools
    assert tool.name == "ask"
    assert tool.input_schema["required"] == ["question"]
    assert set(tool.input_schema["properties"]) == {"question", "max_usd", "max_seconds", "max_steps"}
    assert tool.output_schema is not None
    assert set(tool.output_schema["required"]) == {"answer", "summary"}


async def test_without_an_answer_the_result_is_an_error_with_the_cost() -> None:
    result, _ = await ask(Conductor(ScriptedModel([plan((0, "Answer.", []))]), {"w": ScriptedModel(down)}))
    assert result.is_error
    assert result.content[0].text == "there is no answer: step 1: w: out of order"
    assert result.structured_content["answer"] == ""
    assert result.structured_content["summary"]["usage"]["calls"] == 2


async def test_clients_can_lower_limits_but_not_raise_them() -> None:
    result, _ = await ask(team(limits=Limits(usd="0.000001")), max_usd=1.0)
    assert "limits.usd=0.000001" in result.structured_content["summary"]["rounds"][0]["steps"][0]["error"]
    result, _ = await ask(team(), max_usd=0.000001)
    assert "limits.usd=0.000001" in result.structured_content["summary"]["rounds"][0]["steps"][0]["error"]
    result, _ = await ask(team(), max_steps=1)
    assert len(result.structured_content["summary"]["rounds"][0]["steps"]) == 1
    late = Conductor(ScriptedModel("x", delay=SOON), {"w": ScriptedModel("x", delay=SOON)}, limits=Limits(seconds=SOON))
    result, _ = await ask(late, max_seconds=0.1)
    assert "limits.seconds=0.1 was over" in result.structured_content["summary"]["error"]


@pytest.mark.parametrize("arguments", [{"max_usd": -1}, {"max_steps": 0}, {"question": ""}])
async def test_invalid_arguments_are_refused(arguments: dict[str, Any]) -> None:
    result, _ = await ask(team(), **arguments)
    assert result.is_error


async def test_cancelling_the_call_cancels_the_run() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    class Slow(Model):
        name = "slow"

        async def complete(self, request: Request) -> Completion:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            raise AssertionError

    conductor = Conductor(ScriptedModel([plan((0, "Answer.", []))]), {"slow": Slow()})
    task = asyncio.create_task(ask(conductor))
    await asyncio.wait_for(started.wait(), SOON)
    task.cancel()
    await asyncio.wait([task])
    await asyncio.wait_for(cancelled.wait(), SOON)


async def test_http_demands_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_KEY", "a-long-random-text")
    listener = listen("127.0.0.1", 0, "MCP_KEY")
    with closing(listener.socket), mcp_shop.serve(http_app(conductor_server(team()), listener.api_key)) as site:
        with pytest.raises(ToolSourceError):
            await MCPServer(url=site.url).list_tools()
        server = MCPServer(url=site.url, headers={"Authorization": "Bearer a-long-random-text"})
        (tool,) = await server.list_tools()
        assert await tool.run('{"question": "How many?"}') == "17 pens."
        await server.aclose()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--http", "--host", "0.0.0.0"], "anyone who can reach 0.0.0.0 could spend your money"),
        (["--http", "--api-key-env", "NO_SUCH"], "'NO_SUCH' is not set"),
        (["--http", "--host", "203.0.113.1", "--api-key-env", "PATH"], "another --host or --port"),
    ],
)
def test_an_open_address_needs_a_token(cli: Callable[..., Result], arguments: list[str], message: str) -> None:
    result = cli("mcp", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.slow
async def test_the_command_speaks_over_stdin_and_stdout(command: str, pool: Callable[..., str], tmp_path: Path) -> None:
    arguments = ["mcp", "--pool", pool(), "--usd", "1"]
    environment = {"RL_CONDUCTOR_CACHE": str(tmp_path), "OPENAI_API_KEY": "none"}
    async with Client(StdioServerParameters(command=command, args=arguments, env=environment)) as client:
        result = await client.call_tool("ask", {"question": "What is 6 * 7?"})
    assert result.structured_content is not None
    assert result.structured_content["answer"] == "It is [bold]42[/bold]."
    assert len(result.structured_content["summary"]["rounds"][0]["steps"]) == 3
