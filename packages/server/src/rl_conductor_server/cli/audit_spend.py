"""`audit-spend`: reports the cost per query of logged model calls, their failures, and the share of simple queries."""

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
from rl_conductor_server.spend_audit.log_formats import LoggedCall, parse_line
from rl_conductor_server.spend_audit.report import (
    FAILURES,
    MAX_SIMPLE_INPUT,
    MAX_SIMPLE_OUTPUT,
    QueryTotals,
    SpendingReport,
    group_into_queries,
    report_spending,
)


def audit_spend(
    logs: Annotated[list[Path], typer.Argument(metavar="LOGS...", help="Log files with one call per line (JSONL).")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Report the cost and the failures of your current models from logs.

    The report has the cost per query and the share of simple queries. It reads logs as OpenAI's Batch API, LiteLLM and
    most gateways write them: a request and its response, or model, messages, reply and usage in one object. Nothing
    leaves this machine and no model is called.

    \b
    Examples:
      rl-conductor audit-spend requests.jsonl
      rl-conductor audit-spend logs/*.jsonl --json
    """
    skipped: list[str] = []
    queries = group_into_queries(_read_calls(logs, skipped))
    if not queries:
        raise ConfigError(f"no line of {', '.join(map(str, logs))} is a logged call{_first_reason(skipped)}")
    report = report_spending(queries)
    if as_json:
        console.write_json(report.model_dump_json(indent=2))
    else:
        _print_report(report)
    if skipped:
        console.note(console.stderr(), f"{counted(len(skipped), 'line')} skipped{_first_reason(skipped)}", "yellow")


def _read_calls(logs: list[Path], skipped: list[str]) -> Iterator[LoggedCall]:
    """Yield the calls in all files and append the place and error of every other line to `skipped`."""
    for path in logs:
        with reading_errors(path), path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    call = parse_line(line)
                except ConfigError as error:
                    skipped.append(f"{path}:{number}: {error}")
                else:
                    yield call


def _first_reason(skipped: list[str]) -> str:
    return f", the first at {skipped[0]}" if skipped else ""


def _print_report(report: SpendingReport) -> None:
    out = console.stdout()
    overall = report.overall
    out.print(
        f"{counted(overall.calls, 'call')} in {overall.queries:,} {'query' if overall.queries == 1 else 'queries'}: "
        f"{overall.usage.total_tokens:,} tokens, {cost_in_words(overall.usage)}\n",
        style="bold",
    )
    out.print(_distribution_table(report), "")
    out.print(_share_table(report))


def _distribution_table(report: SpendingReport) -> Table:
    table = Table("per query", "mean", "p50", "p95", box=None, pad_edge=False)
    tokens, costs = report.tokens, report.dollars
    table.add_row("tokens", *(f"{value:,.0f}" for value in (tokens.mean, tokens.p50, tokens.p95)))
    table.add_row("dollars", *(dollars(Decimal(str(value))) for value in (costs.mean, costs.p50, costs.p95)))
    return table


def _share_table(report: SpendingReport) -> Table:
    overall = report.overall
    table = Table("group", "queries", "share", "calls", "cost", box=None, pad_edge=False)
    for name, totals in report.models.items():
        table.add_row(console.one_line(name), *_cells(totals, overall))
    table.add_section()
    for name, totals in report.failures.items():
        table.add_row(f"{name}: {FAILURES[name]}", *_cells(totals, overall))
    table.add_row("any of these failures", *_cells(report.failed, overall))
    table.add_section()
    rule = (
        f"looks simple: one call, at most {MAX_SIMPLE_INPUT:,} input and {MAX_SIMPLE_OUTPUT} output tokens, no tools, "
        "no failure"
    )
    table.add_row(rule, *_cells(report.simple, overall), style="bold")
    return table


def _cells(totals: QueryTotals, overall: QueryTotals) -> tuple[str, ...]:
    return str(totals.queries), f"{totals.queries / overall.queries:.0%}", str(totals.calls), cost(totals.usage)
