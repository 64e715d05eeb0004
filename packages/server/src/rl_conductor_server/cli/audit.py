"""`audit`: the record of who decided what, read, checked and exported."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from rl_conductor._internal.formatting import counted, dollars, seconds
from rl_conductor._internal.io import open_for_writing, reading_errors
from rl_conductor.cli import runner
from rl_conductor.cli.output import console, report
from rl_conductor.errors import ConfigError
from rl_conductor.trace.audit import AuditedCall, Chain, Record, read_export
from rl_conductor_server.cli import stored

if TYPE_CHECKING:
    from rl_conductor_server.store import Store

SHOWN = 12
"""Characters of a hash that tell two apart."""


def audit(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="A run's id; without it, the whole record.", show_default=False)
    ] = None,
    *,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check that nothing was changed: the record, and the run's trace.")
    ] = False,
    export: Annotated[
        Path | None, typer.Option("--export", metavar="FILE", help="Write the whole record to a file (JSONL).")
    ] = None,
    verify_file: Annotated[
        Path | None, typer.Option("--verify-file", metavar="FILE", help="Check an exported file. Needs no store.")
    ] = None,
    head: Annotated[
        str | None,
        typer.Option("--head", metavar="HASH", help="The head as you noted it elsewhere: it must still be there."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a run's records as they are kept.")] = False,
    store: stored.StoreOption = None,
    config: stored.ConfigOption = None,
) -> None:
    """Who decided what in a server's runs: a record in which every change shows.

    Each record names the hash of the one before. The last one's hash, the head, stands for all of them:
    note it where nobody who can write to the store can write.

    \b
    Examples:
      rl-conductor audit --verify
      rl-conductor audit run-3f2a9c0d1b7e4a55 --verify
      rl-conductor audit --export audit.jsonl
      rl-conductor audit --verify-file audit.jsonl --head 9b2f...
    """
    if verify_file is not None:
        _settle(_read_file(verify_file), head)
    elif run is not None:
        _run(run, verify=verify, as_json=as_json, head=head, store=store, config=config)
    elif verify or export or head:
        _settle(_read(store, config, export), head)
    else:
        raise ConfigError("say which: a RUN, --verify, --export FILE or --verify-file FILE")


def _read_file(file: Path) -> Chain:
    with reading_errors(file):
        return read_export(file.read_bytes())


def _read(store: str | None, config: Path | None, export: Path | None) -> Chain:
    """The chain of a store, written to a file on the way if there is one."""
    chain, path = Chain(), export or Path(os.devnull)

    async def look(kept: Store) -> None:
        with open_for_writing(path) as write:
            async for line in kept.records(chain):
                write(line)
            write(chain.seal)

    stored.read(store, config, look)
    return chain


def _run(run: str, *, verify: bool, as_json: bool, head: str | None, store: str | None, config: Path | None) -> None:
    chain = Chain()

    async def look(kept: Store) -> tuple[list[str], str | None]:
        found = [line async for line in kept.records(chain) if json.loads(line).get("run") == run]
        return found, await kept.trace_digest(run)

    lines, trace = stored.read(store, config, look)
    if not lines:
        raise ConfigError(f"no record of a run {run!r}: it is not over, or was never begun")
    if as_json:
        sys.stdout.write("".join(f"{line}\n" for line in lines))
    else:
        _tell([Record.model_validate_json(line) for line in lines])
    if verify or head:
        _settle(chain, head)
        _settle_trace(json.loads(lines[-1])["trace"], trace)


def _settle(chain: Chain, head: str | None) -> None:
    """Say whether a chain is whole, and end with an exit code if it is not."""
    if chain.broken is None and head not in (None, *chain.heads):
        chain.broken = f"the head that you noted, {head}, is not in it: the record was written anew, or cut"
    if chain.broken is not None:
        console.fail(f"the audit record was changed: {chain.broken}")
        raise typer.Exit(runner.NO_ANSWER)
    _confirm(f"{counted(chain.records, 'record')}, none of which was changed; the head is {chain.head}")


def _settle_trace(recorded: str | None, kept: str | None) -> None:
    if recorded is None:
        _confirm("it has no trace: the server that ran it is gone")
    elif kept is None:
        _confirm("its trace is not kept any more, so only the record tells of it")
    elif kept == recorded:
        _confirm("its trace is the one that was recorded")
    else:
        console.fail("its trace was changed: it is not the one that was recorded")
        raise typer.Exit(runner.NO_ANSWER)


def _confirm(what: str) -> None:
    console.stderr().print(Text.assemble(("✓ ", "green"), what), soft_wrap=True)


def _tell(records: Sequence[Record]) -> None:
    out = console.stdout()
    for record in records:
        out.print(report.key_value_table(_facts(record)))
        out.print()
        for number, one in enumerate(record.rounds, 1):
            out.print(f"round {number}: {one.source}, plan {one.plan[:SHOWN]}")
            for call in one.calls:
                out.print(f"  {_call(call)}", soft_wrap=True)
            for place, step in enumerate(one.steps, 1):
                reads = ", ".join(str(index + 1) for index in step.access) or "nothing"
                out.print(f"  step {place}: {console.one_line(step.worker)}, reads {reads}: {step.status}")
                for call in step.calls:
                    out.print(f"    {_call(call)}", soft_wrap=True)
        out.print()


def _facts(record: Record) -> dict[str, str]:
    used = record.used
    return {
        "record": str(record.sequence),
        "run": record.run,
        "began": record.began,
        "took": seconds(record.ms / 1000),
        "asked": f"{record.model} ({record.api}), on the account of {record.key}",
        "is": record.status,
        "used": f"{used.input_tokens + used.output_tokens:,} tokens, {dollars(used.usd)}",
        "made with": _made_with(record),
        "request": record.request or "unknown",
        "answer": record.answer or "none",
        "trace": record.trace or "none: the server that ran it is gone",
    }


def _made_with(record: Record) -> str:
    if record.package is None or record.policy is None:
        return "unknown"
    return f"rl-conductor {record.package}, prompts {record.prompts}, policy {record.policy[:SHOWN]}"


def _call(call: AuditedCall) -> str:
    who = call.requested
    if call.answered not in (None, who):
        who = f"{who}, answered by {call.answered}"
    return console.one_line(f"{call.outcome}: {who}, was shown {call.shown[:SHOWN]}, {seconds(call.ms / 1000)}")
