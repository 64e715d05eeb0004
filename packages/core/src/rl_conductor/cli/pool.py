"""`pool`: the workers that were found, and whether they answer."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from decimal import Decimal
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from rl_conductor._internal.formatting import cost, cost_in_words, dollars, seconds
from rl_conductor.calls.budget import Ledger
from rl_conductor.calls.model_call import Caller
from rl_conductor.cli import conducting, console, options
from rl_conductor.cli.embedded import PREFIX, fetch
from rl_conductor.config.discovery import Found, discover
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
    """Show the workers: what was found and why, what each can take, what it costs.

    \b
    Examples:
      rl-conductor pool
      rl-conductor pool --pool pool.toml --probe --budget 0.01
    """
    found = discover(pool_file=file)
    out = console.stdout()
    for reason in found.reasons:
        console.note(out, console.one_line(reason))
    out.print()
    out.print(_workers(found))
    if probe and not _all_answer(found, budget):
        raise typer.Exit(conducting.NO_ANSWER)


def _workers(found: Found) -> Table:
    listed = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    listed.add_column("worker", no_wrap=True)
    listed.add_column("model", overflow="fold")
    listed.add_column("$ in/out a Mtok", justify="right")
    listed.add_column("takes")
    listed.add_column("known for")
    for name, worker in found.pool.items():
        listed.add_row(
            Text(console.one_line(name), style="bold"),
            Text(console.one_line(worker.model.name)),
            price_in_words(worker.card.price),
            able(worker.model.capabilities),
            Text(console.one_line(_known_for(worker)), style="dim"),
        )
    return listed


def price_in_words(price: Price | None) -> str:
    """US dollars per million tokens, read and written."""
    if price is None:
        return "?"
    if not (price.input or price.output or price.per_call):
        return "free"
    return f"{dollars(price.input)} / {dollars(price.output)}".replace("$", "")


def able(can: Capabilities) -> str:
    """What a model takes beside text."""
    names = {"tools": can.tools, "images": can.images, "files": can.files, "json": can.json_schema}
    return ", ".join(name for name, yes in (names | {"grammar": can.grammar}).items() if yes)


def _known_for(worker: Worker) -> str:
    card = worker.card
    measured = [f"{domain} {share:.0%}" for domain, share in card.accuracy.items()]
    return ", ".join(
        part for part in (card.description, card.strengths, *measured, *sorted(card.tags), card.region) if part
    )


# ------------------------------------------------------------------------------------------ probing


def _all_answer(found: Found, budget: Decimal | None) -> bool:
    models = [worker.model.name for worker in found.pool.values()]
    fetch(dict.fromkeys(name.removeprefix(PREFIX) for name in models if name.startswith(PREFIX)))
    calls = asyncio.run(_probed(found, Limits(usd=budget)))
    out = console.stdout()
    out.print()
    for name, call in calls.items():
        out.print(_outcome(name, call), soft_wrap=not out.is_terminal)
    out.print(Text(f"the probe cost {cost_in_words(total(call.usage for call in calls.values()))}", style="dim"))
    return all(call.outcome == "ok" for call in calls.values())


async def _probed(found: Found, limits: Limits) -> dict[str, Call]:
    """One tiny call to each worker, all at once, under one budget."""
    caller = Caller(Ledger(limits), retries=0)
    try:
        calls = await asyncio.gather(*(_probe(caller, worker) for worker in found.pool.values()))
    finally:
        await found.pool.aclose()
    return dict(zip(found.pool, calls, strict=True))


async def _probe(caller: Caller, worker: Worker) -> Call:
    calls: list[Call] = []
    with suppress(ConductorError):  # what came of it stands in the record
        await caller.ask(worker.model, PROBE, calls=calls, raw_text=True)
    return calls[-1]


def _outcome(name: str, call: Call) -> Text:
    if call.completion is None:
        why = options.as_options(call.error or call.outcome)
        return Text.assemble(("✗ ", "red"), (name, "bold"), f" {console.one_line(why)}")
    who = console.one_line(call.completion.model)
    said = console.one_line(call.completion.text)[:40]
    took = f"{seconds(call.seconds)}, {cost(call.usage)}"
    return Text.assemble(("✓ ", "green"), (name, "bold"), f" {took}, answered by {who}: ", (repr(said), "dim"))
