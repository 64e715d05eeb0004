"""Systems of toy models as TOML tables, and the summary of a bench of them."""

from __future__ import annotations

from rl_conductor_training.bench.runner import Bench
from rl_conductor_training.bench.summary import SummaryRow, summarize

ALONE = '[systems.alone]\nkind = "alone"\n'
BEST = '[systems.best]\nkind = "best-single"\n'
PLANNED = '[systems.planned]\nkind = "conductor"\nplanner = { model = "toy:planner" }\n'


async def lines(bench: Bench) -> dict[str, SummaryRow]:
    (section,) = await bench.run()
    return {one.system: one for one in map(summarize, section.systems)}
