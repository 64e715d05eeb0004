import asyncio

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient

client = OpenAIChatCompletionClient(model="house")
team = Agent(client, name="team")


async def main() -> None:
    result = await team.run("Heron or Kestrel for a daily commute of 12 km?")
    print(result.text)


asyncio.run(main())
