"""`audit`: prints, verifies and exports the audit record of a server's runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from rl_conductor._internal.formatting import counted, dollars, seconds
from rl_conductor._internal.io import open_for_writing, reading_errors
from rl_conductor.cli import exit_codes
from rl_conductor.cli.output import console, report
from rl_conductor.errors import ConfigError
from rl_conductor_server.cli import store_options
from rl_conductor_server.store.audit import (
    AuditedCall,
    AuditRecord,
    Chain,
    ErasureRecord,
    FeedbackRecord,
    Record,
    parse_record,
    read_export,
)

if TYPE_CHECKING:
    from rl_conductor_server.store import Store

HASH_CHARS = 12
"""Number of characters printed of a hash."""


def audit(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="Id of a run; without it, the complete record.", show_default=False),
    ] = None,
    *,
    verify: Annotated[
        bool, typer.Option("--verify", help="Verify that the record and the run's trace were not changed.")
    ] = False,
    export: Annotated[
        Path | None, typer.Option("--export", metavar="FILE", help="Write the complete record to a file (JSONL).")
    ] = None,
    verify_file: Annotated[
        Path | None,
        typer.Option("--verify-file", metavar="FILE", help="Verify an exported file. Needs no store."),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option("--head", metavar="HASH", help="Verify that the record still contains this earlier head."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a run's records as they are stored.")] = False,
    store: store_options.StoreOption = None,
    config: store_options.ConfigOption = None,
) -> None:
    """Print, verify or export the audit record of a server's runs.

    It has the plans, model calls and outcomes of all runs. Each record contains the hash of the one before it. The
    hash of the last one, the head, stands for all of them: keep a copy where nobody who can write to the store can
    change it.

    \b
    Examples:
      rl-conductor audit --verify
      rl-conductor audit run-3f2a9c0d1b7e4a55 --verify
      rl-conductor audit --export audit.jsonl
      rl-conductor audit --verify-file audit.jsonl --head 9b2f...
    """
    if verify_file is not None:
        _reject_options("--verify-file", {"RUN": run, "--export": export, "--json": as_json})
        _report_chain(_read_file(verify_file), head)
    elif run is not None:
        _reject_options("RUN", {"--export": export})
        _audit_run(run, verify=verify, as_json=as_json, head=head, store=store, config=config)
    elif as_json:
        raise ConfigError("--json prints the records of one run; give a RUN")
    elif verify or export or head:
        _report_chain(_read_store(store, config, export), head)
    else:
        raise ConfigError("nothing to do; give a RUN, --verify, --export FILE or --verify-file FILE")


def _reject_options(name: str, others: Mapping[str, object]) -> None:
    for other, value in others.items():
        if value:
            raise ConfigError(f"{name} and {other} don't go together")


def _read_file(file: Path) -> Chain:
    with reading_errors(file):
        return read_export(file.read_bytes())


def _read_store(store: str | None, config: Path | None, export: Path | None) -> Chain:
    """Read and verify the record of a store, writing it to `export` if given."""
    chain, path = Chain(), export or Path(os.devnull)

    async def copy_lines(opened: Store) -> None:
        with open_for_writing(path) as write:
            async for line in opened.audit_lines(chain):
                write(line)
            write(chain.seal)

    store_options.with_store(store, config, copy_lines)
    return chain


def _audit_run(
    run: str, *, verify: bool, as_json: bool, head: str | None, store: str | None, config: Path | None
) -> None:
    chain = Chain()

    async def load(opened: Store) -> tuple[list[str], str | None]:
        lines = [line async for line in opened.audit_lines(chain) if json.loads(line).get("run") == run]
        return lines, await opened.get_trace_digest(run)

    lines, trace_digest = store_options.with_store(store, config, load)
    if not lines:
        raise ConfigError(f"no record of run {run!r}: it has not ended, or it does not exist")
    records = [parse_record(line) for line in lines]
    if as_json:
        sys.stdout.write("".join(f"{line}\n" for line in lines))
    else:
        _print_records(records)
    if verify or head:
        _report_chain(chain, head)
        ends = [record for record in records if isinstance(record, Record)]
        _report_trace(ends[-1].trace if ends else None, trace_digest)


def _report_chain(chain: Chain, head: str | None) -> None:
    """Print whether the chain is intact; exit with an error code if it is not."""
    if chain.broken is None and head not in (None, *chain.heads):
        chain.broken = f"it does not contain the head {head}, so it was rewritten or truncated"
    if chain.broken is not None:
        console.fail(f"the audit record was changed: {chain.broken}")
        raise typer.Exit(exit_codes.FAILURE)
    _confirm(f"{counted(chain.records, 'record')}, none of them changed; the head is {chain.head}")


def _report_trace(recorded: str | None, stored: str | None) -> None:
    """Print whether the digest of a trace is the recorded one; exit with an error code if it is not."""
    if recorded is None:
        _confirm("the run has no trace: the server that ran it is gone")
    elif stored is None:
        _confirm("the run's trace is no longer stored, only its record")
    elif stored == recorded:
        _confirm("the run's trace matches its record")
    else:
        console.fail("the run's trace was changed: it does not match its record")
        raise typer.Exit(exit_codes.FAILURE)


def _confirm(message: str) -> None:
    console.stderr().print(Text.assemble(("✓ ", "green"), message), soft_wrap=True)


def _print_records(records: Sequence[AuditRecord]) -> None:
    out = console.stdout()
    for record in records:
        if not isinstance(record, Record):
            facts = _feedback_facts(record) if isinstance(record, FeedbackRecord) else _erasure_facts(record)
            out.print(report.key_value_table(facts))
            out.print()
            continue
        out.print(report.key_value_table(_facts(record)))
        out.print()
        for number, audited_round in enumerate(record.rounds, 1):
            out.print(f"round {number}: {audited_round.source}, plan {audited_round.plan[:HASH_CHARS]}")
            for call in audited_round.calls:
                _print_call(out, call, "  ")
            for position, step in enumerate(audited_round.steps, 1):
                reads = ", ".join(str(index + 1) for index in step.access) or "nothing"
                out.print(f"  step {position}: {console.one_line(step.worker)}, reads {reads}: {step.status}")
                for call in step.calls:
                    _print_call(out, call, "    ")
        out.print()


def _print_call(out: Console, call: AuditedCall, indent: str) -> None:
    """Prints a call, and below it the calls that a conductor or an agent made for it."""
    out.print(f"{indent}{_call_line(call)}", soft_wrap=True)
    for inner in call.inside:
        _print_call(out, inner, f"{indent}  ")


def _facts(record: Record) -> dict[str, str]:
    used = record.used
    return {
        "record": str(record.sequence),
        "run": record.run,
        "started": record.began,
        "time": seconds(record.ms / 1000),
        "model": f"{record.model} ({record.api})",
        "API key": record.key,
        "status": record.status,
        "usage": f"{used.input_tokens + used.output_tokens:,} tokens, {dollars(used.usd)}",
        "versions": _versions(record),
        "request": record.request or "unknown",
        "answer": record.answer or "none",
        "trace": record.trace or "none: the server that ran it is gone",
    }


def _feedback_facts(record: FeedbackRecord) -> dict[str, str]:
    return {
        "record": str(record.sequence),
        "run": record.run,
        "feedback": f"{record.criterion} = {record.score:g}",
        "from": record.author,
        "at": record.at,
        "comment": record.comment or "none",
    }


def _erasure_facts(record: ErasureRecord) -> dict[str, str]:
    return {"record": str(record.sequence), "run": record.run, "erased by": record.by, "at": record.at}


def _versions(record: Record) -> str:
    if record.package is None or record.policy is None:
        return "unknown"
    return f"rl-conductor {record.package}, prompts {record.prompts}, policy {record.policy[:HASH_CHARS]}"


def _call_line(call: AuditedCall) -> str:
    model = call.requested
    if call.answered not in (None, model):
        model = f"{model}, answered by {call.answered}"
    return console.one_line(f"{call.outcome}: {model}, prompt {call.shown[:HASH_CHARS]}, {seconds(call.ms / 1000)}")
