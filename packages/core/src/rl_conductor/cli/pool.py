"""`pool`: lists the discovered workers and probes them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from decimal import Decimal
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from rl_conductor._internal.formatting import cost, cost_in_words, dollars, seconds
from rl_conductor.calls.budget import Budget
from rl_conductor.calls.model_call import ModelCaller
from rl_conductor.cli import options, runner
from rl_conductor.cli.embedded import PREFIX, fetch
from rl_conductor.cli.output import console
from rl_conductor.config.discovery import DiscoveredPool, discover
from rl_conductor.errors import ConductorError
from rl_conductor.models.base import Capabilities
from rl_conductor.pool.worker import Worker
from rl_conductor.trace.trace import Call
from rl_conductor.types import Message, Price, Request, Sampling, total
from rl_conductor.workflow.limits import Limits

PROBE = Request(
    messages=(Message.user("Reply with the one word: ready"),),
    sampling=Sampling(max_tokens=512),  # models that think first need room for it
    timeout=60.0,
)
PROBE_BUDGET = Decimal("0.05")


def pool(
    file: options.PoolOption = None,
    probe: Annotated[bool, typer.Option("--probe", help="Ask each worker for one word.")] = False,
    budget: options.Budget = PROBE_BUDGET,
) -> None:
    """List the discovered workers with their capabilities and prices.

    \b
    Examples:
      rl-conductor pool
      rl-conductor pool --pool pool.toml --probe --budget 0.01
    """
    discovered = discover(pool_file=file)
    out = console.stdout()
    for reason in discovered.reasons:
        console.note(out, console.one_line(reason))
    out.print()
    out.print(_workers(discovered))
    if probe and not _probe_pool(discovered, budget):
        raise typer.Exit(runner.NO_ANSWER)


def _workers(discovered: DiscoveredPool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("worker", no_wrap=True)
    table.add_column("model", overflow="fold")
    table.add_column("$ in/out a Mtok", justify="right")
    table.add_column("takes")
    table.add_column("known for")
    for name, worker in discovered.pool.items():
        table.add_row(
            Text(console.one_line(name), style="bold"),
            Text(console.one_line(worker.model.name)),
            price_in_words(worker.card.price),
            capability_names(worker.model.capabilities),
            Text(console.one_line(_known_for(worker)), style="dim"),
        )
    return table


def price_in_words(price: Price | None) -> str:
    """US dollars per million tokens, read and written."""
    if price is None:
        return "?"
    if not (price.input or price.output or price.per_call):
        return "free"
    return f"{dollars(price.input)} / {dollars(price.output)}".replace("$", "")


def capability_names(capabilities: Capabilities) -> str:
    """The features of a model besides text."""
    names = {
        "tools": capabilities.tools,
        "images": capabilities.images,
        "files": capabilities.files,
        "json": capabilities.json_schema,
    }
    return ", ".join(name for name, yes in (names | {"grammar": capabilities.grammar}).items() if yes)


def _known_for(worker: Worker) -> str:
    card = worker.card
    measured = [f"{domain} {share:.0%}" for domain, share in card.accuracy.items()]
    return ", ".join(
        part for part in (card.description, card.strengths, *measured, *sorted(card.tags), card.region) if part
    )


# ------------------------------------------------------------------------------------------ probing


def _probe_pool(discovered: DiscoveredPool, budget: Decimal | None) -> bool:
    models = [worker.model.name for worker in discovered.pool.values()]
    fetch(dict.fromkeys(name.removeprefix(PREFIX) for name in models if name.startswith(PREFIX)))
    calls = asyncio.run(_probe_workers(discovered, Limits(usd=budget)))
    out = console.stdout()
    out.print()
    for name, call in calls.items():
        out.print(_outcome(name, call), soft_wrap=not out.is_terminal)
    out.print(Text(f"the probe cost {cost_in_words(total(call.usage for call in calls.values()))}", style="dim"))
    return all(call.outcome == "ok" for call in calls.values())


async def _probe_workers(discovered: DiscoveredPool, limits: Limits) -> dict[str, Call]:
    """One tiny call to each worker, all at once, under one budget."""
    caller = ModelCaller(Budget(limits), retries=0)
    try:
        calls = await asyncio.gather(*(_probe(caller, worker) for worker in discovered.pool.values()))
    finally:
        await discovered.pool.aclose()
    return dict(zip(discovered.pool, calls, strict=True))


async def _probe(caller: ModelCaller, worker: Worker) -> Call:
    calls: list[Call] = []
    with suppress(ConductorError):  # what came of it stands in the record
        await caller.complete(worker.model, PROBE, calls=calls, raw_text=True)
    return calls[-1]


def _outcome(name: str, call: Call) -> Text:
    if call.completion is None:
        why = options.with_option_names(call.error or call.outcome)
        return Text.assemble(("✗ ", "red"), (name, "bold"), f" {console.one_line(why)}")
    who = console.one_line(call.completion.model)
    reply = console.one_line(call.completion.text)[:40]
    took = f"{seconds(call.seconds)}, {cost(call.usage)}"
    return Text.assemble(("✓ ", "green"), (name, "bold"), f" {took}, answered by {who}: ", (repr(reply), "dim"))
