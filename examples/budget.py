"""Budgets are checked before each call; the error names the limit that stopped a run."""

from decimal import Decimal

from rl_conductor import Conductor, Limits, Price, RunError, ScriptedModel, WorkerPool

model = ScriptedModel("An answer.", name="priced", price=Price(input=Decimal(5), output=Decimal(25)))
conductor = Conductor(model, WorkerPool({"priced": model}))

for budget in ("0.001", "1"):
    try:
        trace = conductor.run_sync("Is it affordable?", limits=Limits(usd=Decimal(budget)))
        print(f"${budget}: {trace.text} It cost ${trace.usage.cost}.")
    except RunError as error:
        print(f"${budget}: {error}")
