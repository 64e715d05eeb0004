import asyncio

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient
from agent_framework.orchestrations import GroupChatBuilder

client = OpenAIChatCompletionClient(model="gpt-4.1")
researcher = Agent(client, "You look up facts about bicycles.", name="researcher", description="looks up facts")
analyst = Agent(client, "You compare costs and benefits.", name="analyst", description="compares costs")
writer = Agent(client, "You write recommendations.", name="writer", description="writes recommendations")
manager = Agent(
    client, "Let the researcher speak first, then the analyst. Finish when the writer has answered.", name="manager"
)


async def main() -> None:
    team = [researcher, analyst, writer]
    chat = GroupChatBuilder(participants=team, orchestrator_agent=manager, max_rounds=8, output_from=[writer]).build()
    result = await chat.run("Heron or Kestrel for a daily commute of 12 km?")
    print(result.get_outputs()[0].text)


asyncio.run(main())
