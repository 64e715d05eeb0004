"""Write a program, test it, fix it: the tester is a LangChain agent whose tool runs the tests in a sandbox.

With a vendor's key set, its models do it. Without one, scripted models take their place; the tests run all the same.
"""

import asyncio
import json

from langchain.agents import create_agent
from langchain_core.tools import tool

from langchain_conductor import ChatConductor, RunnableConductor, RunnableModel
from rl_conductor import Card, Message, Policy, Request, ScriptedModel, Worker, discover
from rl_conductor.types import ToolCall
from rl_conductor_training.sandbox.sandbox import Bounds, program_in, run_python

TASK = "Write a Python function `median(numbers)`. Reply with the whole program in a ```python block."
TESTS = "assert median([3, 1, 2]) == 2\nassert median([4, 1, 3, 2]) == 2.5, 'the mean of the two in the middle'"

WRONG = "```python\ndef median(numbers):\n    return sorted(numbers)[len(numbers) // 2]\n```"
RIGHT = "```python\nimport statistics\n\ndef median(numbers):\n    return statistics.median(numbers)\n```"
PLAN = 'model_id = [0, 1, 0]\nsubtasks = ["Write it.", "Test it.", "Fix it."]\naccess_list = [[], ["all"], ["all"]]'


@tool
async def run_tests(program: str) -> str:
    """Run the tests on a Python program."""
    ran = await run_python(f"{program}\n{TESTS}", bounds=Bounds(seconds=5))
    return "The tests pass." if ran.status == "ok" else f"The tests fail: {ran.error.strip().splitlines()[-1]}"


def tester(model: ChatConductor) -> Worker:
    """An agent as a worker, and what the planner is told about it."""
    agent = create_agent(model, [run_tests], system_prompt="Run the tests on the program and tell what they say.")
    return Worker.of("tester", RunnableModel(agent), card=Card(name="tester", strengths="runs the tests"))


def real() -> ChatConductor | None:
    """The models of this machine, and the tester beside them; the tiny embedded ones can't do this."""
    found = discover()
    if found.embedded:
        return None
    return ChatConductor(workers={**found.pool, "tester": tester(ChatConductor(profile="mini"))})


def rehearsal() -> ChatConductor:
    """Scripted models; the coder is wrong until it sees the tests fail."""

    def code(request: Request) -> str:
        return RIGHT if "The tests fail" in request.messages[-1].text else WRONG

    def test(request: Request) -> str | Message:
        last = request.messages[-1]
        arguments = json.dumps({"program": program_in(last.text)})
        call = ToolCall(id="1", name="run_tests", arguments=arguments)
        return last.text if last.role == "tool" else Message.assistant(tool_calls=[call])

    hands = ChatConductor(workers={"hands": ScriptedModel(test)}, policy=Policy(single="hands"))
    return ChatConductor(workers={"coder": ScriptedModel(code), "tester": tester(hands)}, planner=ScriptedModel(PLAN))


async def main() -> None:
    """Have it written, then test the result once more."""
    trace = await RunnableConductor(real() or rehearsal()).ainvoke(TASK)
    for result in trace.results():
        print(f"{result.index + 1}. {result.step.worker}: {result.step.subtask}\n{result.text}\n")
    print(await run_tests.ainvoke({"program": program_in(trace.text)}))


asyncio.run(main())
