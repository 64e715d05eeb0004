"""A support desk that sends simple questions to a cheap model and hard ones to a strong one.

A plan of a single step is routing: `limits.steps=1`. With a vendor's key set, the planner chooses between its
strong and its fast model. Without one, scripted models take their place, because the tiny embedded ones don't choose
well.
"""

import re

from langchain_conductor import ChatConductor
from rl_conductor import Limits, Price, Request, ScriptedModel, discover

QUESTIONS = [
    "Which days are you open?",
    "I paid 3 invoices of 249.90 and got 15 percent back. How much did I pay in the end?",
]


def rehearsal() -> ChatConductor:
    """Scripted models; to the planner, every question with a number in it is hard."""

    def plan(request: Request) -> str:
        question = next(question for question in QUESTIONS if question in request.messages[-1].text)
        worker = 1 if re.search(r"\d", question) else 0
        return f'model_id = [{worker}]\nsubtasks = ["Answer the customer."]\naccess_list = [[]]'

    cheap = ScriptedModel("Monday to Friday, 9 to 17.", name="cheap", price=Price(input="0.1", output="0.4"))
    strong = ScriptedModel("637.25 dollars.", name="strong", price=Price(input="3", output="15"))
    workers = {"cheap": cheap, "strong": strong}
    return ChatConductor(workers=workers, planner=ScriptedModel(plan, name="planner"), limits=Limits(steps=1))


desk = rehearsal() if discover().embedded else ChatConductor(limits=Limits(steps=1))
for question in QUESTIONS:
    reply = desk.invoke(question)
    told = reply.response_metadata["conductor"]
    (step,) = told["rounds"][0]["steps"]
    print(question)
    print(f"  {step['worker']}: {reply.text}")
    print(f"  {told['seconds']:.1f} s, ${step['usage']['cost']}, with planning ${told['usage']['cost']}")
