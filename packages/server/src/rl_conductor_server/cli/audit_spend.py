"""`audit-spend`: what the models that you call today cost a query, how they fail, and what a small one could do."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from rl_conductor._internal.formatting import cost, cost_in_words, counted, dollars
from rl_conductor._internal.io import reading_errors
from rl_conductor.cli.output import console
from rl_conductor.errors import ConfigError
from rl_conductor_server.experiments.log_formats import Logged, read
from rl_conductor_server.experiments.spend_audit import (
    FAILURES,
    SIMPLE_INPUT,
    SIMPLE_OUTPUT,
    Share,
    SpendingReport,
    queries,
    spending,
)


def audit_spend(
    logs: Annotated[list[Path], typer.Argument(metavar="LOGS...", help="Files with one call a line (JSONL).")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """What your present models cost a query, how they fail, and what share looks simple.

    It reads logs as OpenAI's Batch API, LiteLLM and most gateways write them: a request and its response,
    or model, messages, reply and usage in one object. Nothing leaves this machine and no model is called.

    \b
    Examples:
      rl-conductor audit-spend requests.jsonl
      rl-conductor audit-spend logs/*.jsonl --json
    """
    unread: list[str] = []
    made = queries(_calls(logs, unread))
    if not made:
        raise ConfigError(f"no line of {', '.join(map(str, logs))} is a logged call{_why(unread)}")
    report = spending(made)
    if as_json:
        console.write_json(report.model_dump_json(indent=2))
    else:
        _tell(report)
    if unread:
        console.note(console.stderr(), f"{counted(len(unread), 'line')} passed over{_why(unread)}", "yellow")


def _calls(logs: list[Path], unread: list[str]) -> Iterator[Logged]:
    for path in logs:
        with reading_errors(path), path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield from _call(line, f"{path}:{number}", unread)


def _call(line: str, place: str, unread: list[str]) -> Iterator[Logged]:
    try:
        yield read(line)
    except ConfigError as error:
        unread.append(f"{place}: {error}")


def _why(unread: list[str]) -> str:
    return f", the first at {unread[0]}" if unread else ""


def _tell(report: SpendingReport) -> None:
    out = console.stdout()
    whole = report.whole
    out.print(
        f"{counted(whole.calls, 'call')} at {whole.queries} {'query' if whole.queries == 1 else 'queries'}: "
        f"{whole.usage.total_tokens:,} tokens, {cost_in_words(whole.usage)}\n",
        style="bold",
    )
    table = Table("a query", "mean", "p50", "p95", box=None, pad_edge=False)
    tokens, money = report.tokens, report.dollars
    table.add_row("tokens", *(f"{amount:,.0f}" for amount in (tokens.mean, tokens.p50, tokens.p95)))
    spent = (dollars(Decimal(str(amount))) for amount in (money.mean, money.p50, money.p95))
    table.add_row("dollars", *spent)
    out.print(table, "")
    table = Table("what", "queries", "share", "calls", "cost", box=None, pad_edge=False)
    for name, share in report.models.items():
        table.add_row(console.one_line(name), *_cells(share, whole))
    table.add_section()
    for name, share in report.failures.items():
        table.add_row(f"{name}: {FAILURES[name]}", *_cells(share, whole))
    table.add_row("any of these", *_cells(report.failed, whole))
    table.add_section()
    rule = f"looks simple: one call, at most {SIMPLE_INPUT:,} tokens in and {SIMPLE_OUTPUT} out, no tool, no failure"
    table.add_row(rule, *_cells(report.simple, whole), style="bold")
    out.print(table)


def _cells(share: Share, whole: Share) -> tuple[str, ...]:
    return str(share.queries), f"{share.queries / whole.queries:.0%}", str(share.calls), cost(share.usage)
