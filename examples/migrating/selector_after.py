import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

info = ModelInfo(vision=True, function_calling=True, json_output=True, structured_output=True, family="unknown")
client = OpenAIChatCompletionClient(model="house", model_info=info)
team = AssistantAgent("team", client)


async def main() -> None:
    result = await team.run(task="Heron or Kestrel for a daily commute of 12 km?")
    print(result.messages[-1].content)


asyncio.run(main())
