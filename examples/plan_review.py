"""A LangGraph graph that pauses for a person to review each plan. Here the person first asks for fewer steps.

With a vendor's API key, the vendor's models are used. Without one, scripted models replace them.
"""

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command

from langchain_conductor import ChatConductor, create_conductor
from rl_conductor import Request, ScriptedModel, discover

LONG = """model_id = [0, 1, 0, 1]
subtasks = ["List reasons.", "List reasons against.", "Weigh them.", "Write it up."]
access_list = [[], [], ["all"], ["all"]]"""
SHORT = 'model_id = [0, 1]\nsubtasks = ["List reasons.", "Write it up."]\naccess_list = [[], ["all"]]'


def scripted_models() -> ChatConductor:
    """Returns a conductor with scripted models: a planner that follows the reviewer's message, and two workers."""

    def plan(request: Request) -> str:
        return SHORT if "Two steps are enough." in request.messages[-1].text else LONG

    workers = {"thinker": ScriptedModel("It keeps the drafts."), "writer": ScriptedModel("Yes: it keeps the drafts.")}
    return ChatConductor(workers=workers, planner=ScriptedModel(plan))


builder = StateGraph(MessagesState)
solve = create_conductor(scripted_models() if discover().embedded else ChatConductor(), interrupt_before_run=True)
builder.add_node("solve", solve)
builder.add_edge(START, "solve")
graph = builder.compile(checkpointer=InMemorySaver())
config: RunnableConfig = {"configurable": {"thread_id": "1"}}

paused = graph.invoke({"messages": [HumanMessage("Should we checkpoint every step?")]}, config)
print(paused["__interrupt__"][0].value["drawing"], end="\n\n")

rejection = {"type": "reject", "message": "Two steps are enough."}  # or "edit" with a "workflow", or "respond"
paused = graph.invoke(Command(resume=rejection), config)
print(paused["__interrupt__"][0].value["drawing"], end="\n\n")

for namespace, update in graph.stream(Command(resume={"type": "approve"}), config, subgraphs=True):
    print("  " * len(namespace) + ", ".join(update))
print(graph.get_state(config).values["messages"][-1].text)
