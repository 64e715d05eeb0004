"""Writes, tests and fixes a program; the tester is a LangChain agent with a tool that runs the tests in a sandbox.

With a vendor's API key, the vendor's models are used. Without one, scripted models replace them; the tests still run.
"""

import asyncio
import json

from langchain.agents import create_agent
from langchain_core.tools import tool

from langchain_conductor import ChatConductor, RunnableConductor
from rl_conductor import Message, Policy, Request, ScriptedModel, discover
from rl_conductor.pool import AnyWorker
from rl_conductor.types import ToolCall
from rl_conductor_training.sandbox.sandbox import ResourceLimits, extract_program, run_python

TASK = "Write a Python function `median(numbers)`. Reply with the whole program in a ```python block."
TESTS = "assert median([3, 1, 2]) == 2\nassert median([4, 1, 3, 2]) == 2.5, 'the mean of the two in the middle'"

WRONG = "```python\ndef median(numbers):\n    return sorted(numbers)[len(numbers) // 2]\n```"
RIGHT = "```python\nimport statistics\n\ndef median(numbers):\n    return statistics.median(numbers)\n```"
PLAN = 'model_id = [0, 1, 0]\nsubtasks = ["Write it.", "Test it.", "Fix it."]\naccess_list = [[], ["all"], ["all"]]'


@tool
async def run_tests(program: str) -> str:
    """Run the tests on a Python program."""
    ran = await run_python(f"{program}\n{TESTS}", limits=ResourceLimits(seconds=5))
    return "The tests pass." if ran.status == "ok" else f"The tests fail: {ran.error.strip().splitlines()[-1]}"


def create_tester(model: ChatConductor) -> AnyWorker:
    """Creates a worker from an agent, with a description for the planner."""
    agent = create_agent(model, [run_tests], system_prompt="Run the tests on the program and report their result.")
    return {"model": agent, "description": "runs the tests"}


def real_models() -> ChatConductor | None:
    """Uses the models of this machine; `None` if there are only the embedded ones, which are too small."""
    discovered = discover()
    if discovered.embedded:
        return None
    return ChatConductor(workers={**discovered.pool, "tester": create_tester(ChatConductor(model="mini"))})


def scripted_models() -> ChatConductor:
    """Uses scripted models; the coder's program is wrong until it sees the tests fail."""

    def code(request: Request) -> str:
        return RIGHT if "The tests fail" in request.messages[-1].text else WRONG

    def test(request: Request) -> str | Message:
        last = request.messages[-1]
        arguments = json.dumps({"program": extract_program(last.text)})
        call = ToolCall(id="1", name="run_tests", arguments=arguments)
        return last.text if last.role == "tool" else Message.assistant(tool_calls=[call])

    agent_model = ChatConductor(workers={"agent": ScriptedModel(test)}, policy=Policy(single="agent"))
    return ChatConductor(
        workers={"coder": ScriptedModel(code), "tester": create_tester(agent_model)}, planner=ScriptedModel(PLAN)
    )


async def main() -> None:
    """Runs the task, prints each step, and tests the result once more."""
    trace = await RunnableConductor(real_models() or scripted_models()).ainvoke(TASK)
    for result in trace.results:
        print(f"{result.index + 1}. {result.step.worker}: {result.step.subtask}\n{result.text}\n")
    print(await run_tests.ainvoke({"program": extract_program(trace.text)}))


asyncio.run(main())
