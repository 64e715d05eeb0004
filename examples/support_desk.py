"""A support desk that routes simple questions to a cheap model and hard ones to a strong model.

With `limits.steps=1` every plan has one step, which makes it a router. With a vendor's API key, the planner chooses
between the vendor's strong and fast models. Without one, scripted models replace them, because the tiny embedded models
don't choose well.
"""

import re

from langchain_conductor import ChatConductor
from rl_conductor import Limits, Price, Request, ScriptedModel, discover

QUESTIONS = [
    "Which days are you open?",
    "I paid 3 invoices of 249.90 and got 15 percent back. How much did I pay in the end?",
]


def scripted_models() -> ChatConductor:
    """Returns a conductor with scripted models; its planner considers questions with numbers hard."""

    def plan(request: Request) -> str:
        question = next(question for question in QUESTIONS if question in request.messages[-1].text)
        worker = 1 if re.search(r"\d", question) else 0
        return f'model_id = [{worker}]\nsubtasks = ["Answer the customer."]\naccess_list = [[]]'

    cheap = ScriptedModel("Monday to Friday, 9 to 17.", name="cheap", price=Price(input="0.1", output="0.4"))
    strong = ScriptedModel("637.25 dollars.", name="strong", price=Price(input="3", output="15"))
    workers = {"cheap": cheap, "strong": strong}
    return ChatConductor(workers=workers, planner=ScriptedModel(plan, name="planner"), limits=Limits(steps=1))


desk = scripted_models() if discover().embedded else ChatConductor(limits=Limits(steps=1))
for question in QUESTIONS:
    reply = desk.invoke(question)
    summary = reply.response_metadata["conductor"]
    (step,) = summary["rounds"][0]["steps"]
    print(question)
    print(f"  {step['worker']}: {reply.text}")
    print(f"  {summary['seconds']:.1f} s, ${step['usage']['cost']}, including planning ${summary['usage']['cost']}")
