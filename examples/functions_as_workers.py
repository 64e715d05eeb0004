"""Python functions as workers: a price list and a calculator, beside a model that writes.

Functions cost nothing and make no mistakes at what they are for, so a plan uses models only where it has to. The
planner reads the functions' docstrings. With a vendor's key set, its models plan and write; without one, scripted
models take their place, and the functions are called all the same.
"""

import ast
import operator
import re
from fractions import Fraction

from rl_conductor import Conductor, Request, ScriptedModel, discover
from rl_conductor.pool import AnyWorker

PRICES = {"pen": "3.20", "notebook": "4.50"}
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}

PLAN = """The prices are in the list, and the rest is arithmetic.
model_id = [0, 1, 2]
subtasks = ["pen, notebook", "17 * 3.20 + 2 * 4.50", "Write one sentence with the total."]
access_list = [[], ["all"], ["all"]]"""


def prices(subtask: str) -> dict[str, str]:
    """Looks up the shop's prices in dollars; the subtask lists the goods, separated by commas."""
    names = [name.strip().lower().removesuffix("s") for name in subtask.split(",")]
    return {name: PRICES.get(name, "not sold here") for name in names}


def calculate(subtask: str) -> str:
    """Calculates exactly; the subtask is an arithmetic expression with + - * / and nothing else."""
    return f"{float(_value(ast.parse(subtask.strip(), mode='eval').body)):.2f}"


def _value(node: ast.expr) -> Fraction:
    """The value of an expression; whatever else a model may write is an error, and fails the step."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return Fraction(str(number))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return Fraction(OPERATORS[type(op)](_value(left), _value(right)))
        case _:
            raise ValueError(f"not an arithmetic expression: {ast.unparse(node)}")


def rehearsal() -> Conductor:
    """Scripted models: a planner, and a writer that repeats the last reply it is shown."""

    def write(request: Request) -> str:
        total = re.findall(r"\d+\.\d\d", request.messages[-1].text)[-1]
        return f"That is {total} dollars in all."

    return Conductor(ScriptedModel(PLAN), FUNCTIONS | {"writer": ScriptedModel(write)})


FUNCTIONS: dict[str, AnyWorker] = {"prices": prices, "calculator": calculate}
found = discover()
conductor = rehearsal() if found.embedded else Conductor(found.planner, FUNCTIONS | dict(found.pool))
trace = conductor.run_sync("What do 17 pens and 2 notebooks cost?")

for result in trace.results:
    print(f"{result.index + 1}. {result.step.worker}: {result.step.subtask}\n   {result.text or result.error}")
print(f"\n{trace.text}")
