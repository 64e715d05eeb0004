"""`chat`: turns of one conversation, their limits, and the total at the end."""

from __future__ import annotations

from collections.abc import Callable

from typer.testing import Result

from command_line import Service

Cli = Callable[..., Result]
Pool = Callable[..., str]


def test_each_line_is_a_turn_of_one_conversation(cli: Cli, pool: Pool, service: Service) -> None:
    lines = "What is 6 * 7?\n\nAnd half of it?\n"
    result = cli("chat", "--system", "Be brief.", "--pool", pool(planner="plan-one"), text=lines)

    assert result.exit_code == 0
    assert result.stdout == "It is [bold]42[/bold].\n" * 2
    first, second = (wire.body["messages"] for wire in service.requests if wire.body["model"] == "solver")
    assert [message["role"] for message in first] == ["system", "user"]
    assert [message["role"] for message in second] == ["system", "user", "assistant", "user"]
    assert second[2]["content"] == "It is [bold]42[/bold]."
    assert result.stderr.splitlines()[-1] == "2 answers · 440 tokens · $0.0011"


def test_a_new_conversation_forgets_the_last_one(cli: Cli, pool: Pool, service: Service) -> None:
    cli("chat", "--pool", pool(planner="plan-one"), text="What is 6 * 7?\n/new\nAnd now?\n")

    second = [wire.body["messages"] for wire in service.requests if wire.body["model"] == "solver"][1]
    assert [message["role"] for message in second] == ["user"]


def test_the_budget_holds_for_the_whole_chat(cli: Cli, pool: Pool) -> None:
    lines = "What is 6 * 7?\n" * 3
    result = cli("chat", "--tokens", "20000", "--pool", pool(planner="plan-one"), text=lines)
    assert result.stdout.count("42") == 3
    result = cli("chat", "--usd", "0.0001", "--pool", pool(planner="plan-one"), text=lines)

    assert result.stdout == ""
    assert result.stderr.count("error: ") == 3
    assert "--usd" in result.stderr
    assert "0 answers" in result.stderr


def test_a_turn_without_an_answer_leaves_the_conversation_as_it_was(cli: Cli, pool: Pool, service: Service) -> None:
    result = cli("chat", "--quiet", "--pool", pool("bad-request", planner="plan-one"), text="Hello?\nHello again?\n")

    assert result.exit_code == 1
    assert result.stderr.count("error: there is no answer") == 2
    last = [wire.body["messages"] for wire in service.requests if wire.body["model"] == "bad-request"][-1]
    assert [message["role"] for message in last] == ["user"]
