from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

from langchain_conductor import ChatConductor, create_conductor

DATA = {"Heron": "Heron: 12.4 kg, belt drive, 1,890 euros.", "Kestrel": "Kestrel: 9.8 kg, chain, 2,350 euros."}


def look_up(bicycle: str) -> str:
    """Returns the data sheet of a bicycle."""
    return DATA.get(bicycle, "There is no data sheet.")


model = ChatOpenAI(model="gpt-4.1")
researcher = create_agent(model, [look_up], name="researcher", system_prompt="You look up facts about bicycles.")
writer = create_agent(model, name="writer", system_prompt="You write recommendations for customers.")

team = ChatConductor(
    {
        "researcher": {"model": researcher, "description": "looks up the data sheets of bicycles"},
        "writer": {"model": writer, "description": "writes recommendations for customers"},
    },
    planner=model,
)
builder = StateGraph(MessagesState)
builder.add_node("team", create_conductor(team))
builder.add_edge(START, "team")
result = builder.compile().invoke({"messages": [HumanMessage("Heron or Kestrel for a daily commute of 12 km?")]})
print(result["messages"][-1].text)
