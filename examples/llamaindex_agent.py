"""A LlamaIndex agent with the Conductor as its LLM; the worker that gives the answer calls the tools."""

import asyncio
import json
import warnings

from llama_index.core.agent.workflow import FunctionAgent, ToolCallResult

from llama_index.llms.conductor import Conductor
from rl_conductor import Message, Request, ScriptedModel, discover
from rl_conductor.types import ToolCall

PLAN = 'model_id = [0, 1]\nsubtasks = ["List the facts needed.", "Answer."]\naccess_list = [[], ["all"]]'
PRICES = {"Heron": 189, "Swift": 129, "Skylark": 59}


def price_of(article: str) -> int:
    """Returns the price of an article of Meridian Kites in euros."""
    return PRICES[article]


def clerk(request: Request) -> str | Message:
    """Acts like a model: looks the price up, then answers."""
    if request.messages[-1].role == "tool":
        return f"Two of them cost {2 * int(request.messages[-1].text)} euros."
    call = ToolCall(id="call-1", name="price_of", arguments=json.dumps({"article": "Swift"}))
    return Message.assistant(tool_calls=[call])


def conductor() -> Conductor:
    """Uses the models of this machine, or scripted ones if there is no API key or server."""
    if not discover().embedded:
        return Conductor()
    workers = {"thinker": ScriptedModel("The price of a Swift."), "clerk": ScriptedModel(clerk)}
    return Conductor(workers, planner=ScriptedModel(PLAN))


async def main() -> None:
    """Runs the agent and prints its tool calls, its answer and the workers."""
    llm = conductor()
    handler = FunctionAgent(tools=[price_of], llm=llm).run("What do two Swifts cost?")
    async for event in handler.stream_events():
        if isinstance(event, ToolCallResult):
            print(f"{event.tool_name}({event.tool_kwargs}) = {event.tool_output}")
    print(await handler)
    assert llm.trace is not None
    print("worker:", *llm.trace.usage_by_worker, "- plan:", llm.trace.rounds[0].plan.source)


warnings.simplefilter("ignore", DeprecationWarning)  # agents read attributes that pydantic has deprecated
asyncio.run(main())
