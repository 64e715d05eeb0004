from typing import Literal

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

DATA = {"Heron": "Heron: 12.4 kg, belt drive, 1,890 euros.", "Kestrel": "Kestrel: 9.8 kg, chain, 2,350 euros."}


def look_up(bicycle: str) -> str:
    """Returns the data sheet of a bicycle."""
    return DATA.get(bicycle, "There is no data sheet.")


model = ChatOpenAI(model="gpt-4.1")
researcher = create_agent(model, [look_up], name="researcher", system_prompt="You look up facts about bicycles.")
writer = create_agent(model, name="writer", system_prompt="You write recommendations for customers.")


def route(state: MessagesState) -> Literal["researcher", "writer"]:
    """Questions that name a bicycle need its data sheet."""
    return "researcher" if any(bicycle in state["messages"][-1].text for bicycle in DATA) else "writer"


builder = StateGraph(MessagesState)
builder.add_node("researcher", researcher)
builder.add_node("writer", writer)
builder.add_conditional_edges(START, route)
builder.add_edge("researcher", "writer")
result = builder.compile().invoke({"messages": [HumanMessage("Heron or Kestrel for a daily commute of 12 km?")]})
print(result["messages"][-1].text)
