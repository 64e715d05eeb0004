"""Budgets are checked before each call; the error names the limit that stopped a run."""

from rl_conductor import Conductor, Limits, Price, RunError, ScriptedModel

price = Price(input="5", output="25")  # dollars per million tokens
planner = ScriptedModel('model_id = [0]\nsubtasks = ["Answer."]\naccess_list = [[]]', price=price)
conductor = Conductor(planner, {"worker": ScriptedModel("An answer.", price=price)})

for budget in ("0.001", "1"):
    try:
        trace = conductor.run_sync("Is it affordable?", limits=Limits(usd=budget))
        print(f"${budget}: {trace.text} It cost ${trace.usage.cost}.")
    except RunError as error:
        print(f"${budget}: {error}")
