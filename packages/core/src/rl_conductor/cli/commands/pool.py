"""`pool`: lists the discovered workers and probes them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import aclosing, suppress
from decimal import Decimal
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from rl_conductor._internal.formatting import cost, cost_in_words, rates, seconds
from rl_conductor.calls.context import RunContext
from rl_conductor.calls.model_call import ModelCall
from rl_conductor.cli import exit_codes, options
from rl_conductor.cli.embedded import fetch_embedded
from rl_conductor.cli.output import console
from rl_conductor.config.discovered_pool import DiscoveredPool
from rl_conductor.config.discovery import discover
from rl_conductor.errors import ConductorError
from rl_conductor.models.base import Capabilities
from rl_conductor.pool.worker import Worker
from rl_conductor.trace.trace import Call
from rl_conductor.types import Message, Request, Sampling, total
from rl_conductor.workflow.limits import Limits

PROBE = Request(
    messages=(Message.user("Reply with the one word: ready"),),
    sampling=Sampling(max_tokens=512),  # leaves room for reasoning
    timeout=60.0,
)
PROBE_USD = Decimal("0.05")
MAX_UNBROKEN_NAME = 24
"""Characters: longer names of models are broken in narrow terminals, to leave room for the descriptions."""


def pool(
    file: options.PoolOption = None,
    probe: Annotated[bool, typer.Option("--probe", help="Test each worker with a tiny request.")] = False,
    usd: options.Usd = PROBE_USD,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=options.OUTPUT)] = False,
) -> None:
    """List the discovered workers with their capabilities and prices.

    \b
    Examples:
      rl-conductor pool
      rl-conductor pool --pool pool.toml --probe --usd 0.01
    """
    discovered = discover(pool_file=file)
    if as_json:
        _print_json(discovered, usd, probe=probe)
        return
    out = console.stdout()
    for reason in discovered.reasons:
        console.note(out, console.one_line(reason))
    out.print()
    out.print(_workers(discovered))
    if probe and not _print_probe(_probe_pool(discovered, usd)):
        raise typer.Exit(exit_codes.FAILURE)


def _print_json(discovered: DiscoveredPool, usd: Decimal | None, *, probe: bool) -> None:
    """Prints the workers as JSON, with the outcome of the probe if it is wanted."""
    calls = _probe_pool(discovered, usd) if probe else {}
    workers = [
        {
            "name": name,
            "model": worker.model.name,
            "capabilities": capability_names(worker.model.capabilities),
            "card": worker.card.model_dump(mode="json"),
            **({"probe": _call_summary(calls[name])} if name in calls else {}),
        }
        for name, worker in discovered.pool.items()
    ]
    content = {"reasons": discovered.reasons, "planner": discovered.planner.model.name, "workers": workers}
    console.write_json(json.dumps(content, indent=2, ensure_ascii=False))
    if any(call.outcome != "ok" for call in calls.values()):
        raise typer.Exit(exit_codes.FAILURE)


def _call_summary(call: Call) -> dict[str, Any]:
    return {
        "outcome": call.outcome,
        "error": call.error,
        "model": call.completion and call.completion.model,
        "seconds": call.seconds,
        "usage": call.usage.model_dump(mode="json"),
    }


def _workers(discovered: DiscoveredPool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    longest = max(len(worker.model.name) for worker in discovered.pool.values())
    table.add_column("worker", no_wrap=True)
    table.add_column("model", overflow="fold", no_wrap=longest <= MAX_UNBROKEN_NAME)
    table.add_column("in/out per Mtok", justify="right")
    table.add_column("supports")
    table.add_column("description")
    for name, worker in discovered.pool.items():
        table.add_row(
            Text(console.one_line(name), style="bold"),
            Text(console.one_line(worker.model.name)),
            "?" if worker.card.price is None else rates(worker.card.price),
            ", ".join(capability_names(worker.model.capabilities)),
            Text(console.one_line(_description(worker)), style="dim"),
        )
    return table


def capability_names(capabilities: Capabilities) -> list[str]:
    """Lists the features of a model besides text."""
    names = {
        "tools": capabilities.tools,
        "images": capabilities.images,
        "files": capabilities.files,
        "json": capabilities.json_schema,
        "grammar": capabilities.grammar,
    }
    return [name for name, is_supported in names.items() if is_supported]


def _description(worker: Worker) -> str:
    card = worker.card
    measured = [f"{domain} {accuracy:.0%}" for domain, accuracy in card.accuracy.items()]
    return ", ".join(
        part for part in (card.description, card.strengths, *measured, *sorted(card.tags), card.region) if part
    )


# ------------------------------------------------------------------------------------------ probing


def _probe_pool(discovered: DiscoveredPool, usd: Decimal | None) -> dict[str, Call]:
    fetch_embedded(worker.model.name for worker in discovered.pool.values())
    return asyncio.run(_probe_workers(discovered, Limits(usd=usd)))


def _print_probe(calls: Mapping[str, Call]) -> bool:
    """Prints the outcome of each worker's call; returns whether all of them succeeded."""
    out = console.stdout()
    out.print()
    for name, call in calls.items():
        out.print(_outcome(name, call), soft_wrap=not out.is_terminal)
    out.print(Text(f"the probe cost {cost_in_words(total(call.usage for call in calls.values()))}", style="dim"))
    return all(call.outcome == "ok" for call in calls.values())


async def _probe_workers(discovered: DiscoveredPool, limits: Limits) -> dict[str, Call]:
    """Sends a tiny request to each worker, concurrently and under one budget."""
    run = RunContext(limits=limits, retries=0)
    async with aclosing(discovered.pool):
        calls = await asyncio.gather(*(_probe(run, worker) for worker in discovered.pool.values()))
    return dict(zip(discovered.pool, calls, strict=True))


async def _probe(run: RunContext, worker: Worker) -> Call:
    calls: list[Call] = []
    with suppress(ConductorError):  # the error is in the recorded call
        await ModelCall(run=run, model=worker.model, request=PROBE, calls=calls, reasoning=None).complete()
    return calls[-1]


def _outcome(name: str, call: Call) -> Text:
    if call.completion is None:
        reason = options.with_option_names(call.error or call.outcome)
        return Text.assemble(("✗ ", "red"), (name, "bold"), f" {console.one_line(reason)}")
    model = console.one_line(call.completion.model)
    reply = console.one_line(call.completion.text)[:40]
    usage = f"{seconds(call.seconds)}, {cost(call.usage)}"
    return Text.assemble(("✓ ", "green"), (name, "bold"), f" {usage}, answered by {model}: ", (repr(reply), "dim"))
