"""Guardrails keep a customer number from every model, and refuse an answer that promises a refund."""

from dataclasses import dataclass
from typing import ClassVar

from rl_conductor import Conductor, ScriptedModel
from rl_conductor.errors import RefusedError
from rl_conductor.guardrails import Allow, Content, Guardrail, Redact, Refuse, Stage, Verdict

CUSTOMER = "C-4711"


@dataclass(kw_only=True, eq=False)
class HideCustomer(Guardrail):
    rewrites: ClassVar[bool] = True
    name: str = "customer-number"
    stages: tuple[Stage, ...] = ("input", "reply", "answer")

    async def check(self, content: Content) -> Verdict:
        return Redact(tuple(text.replace(CUSTOMER, "<CUSTOMER>") for text in content.texts), "a customer number")


@dataclass(kw_only=True, eq=False)
class NoPromises(Guardrail):
    name: str = "no-promises"
    stages: tuple[Stage, ...] = ("answer",)

    async def check(self, content: Content) -> Verdict:
        assert content.reply is not None
        return Refuse("it promises a refund") if "will refund" in content.reply.text else Allow()


PLAN = 'model_id = [0, 1]\nsubtasks = ["Look it up.", "Answer."]\naccess_list = [[], ["all"]]'
lookup = ScriptedModel(f"Order of {CUSTOMER}: delivered on Monday.")
support = ScriptedModel(["Your order was delivered on Monday.", "We will refund you today."])
planner = ScriptedModel(PLAN)
workers = {"lookup": lookup, "support": support}
conductor = Conductor(planner, workers, guardrails=[HideCustomer(), NoPromises()])

trace = conductor.run_sync(f"I am {CUSTOMER}. Where is my order?")
print(trace.text)
for check in trace.checks:
    print("-", check.in_words)
sent = [request.model_dump_json() for model in (planner, lookup, support) for request in model.requests]
print("customer numbers sent to models:", sum(CUSTOMER in request for request in sent))

try:
    conductor.run_sync("I want my money back.")
except RefusedError as error:
    print(error)
