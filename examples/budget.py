"""A budget stops spending before it happens, and the trace says what was refused and why."""

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
