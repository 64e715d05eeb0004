import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination, SourceMatchTermination
from autogen_agentchat.teams import SelectorGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

client = OpenAIChatCompletionClient(model="gpt-4.1")
researcher = AssistantAgent("researcher", client, description="looks up facts", system_message="You look up facts.")
analyst = AssistantAgent("analyst", client, description="compares costs", system_message="You compare costs.")
writer = AssistantAgent("writer", client, description="writes recommendations", system_message="You recommend one.")
stop = SourceMatchTermination(["writer"]) | MaxMessageTermination(8)
chat = SelectorGroupChat([researcher, analyst, writer], client, termination_condition=stop)


async def main() -> None:
    result = await chat.run(task="Heron or Kestrel for a daily commute of 12 km?")
    print(result.messages[-1].content)


asyncio.run(main())
