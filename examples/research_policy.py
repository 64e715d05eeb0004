"""Research over documents, some of which a policy keeps from external models, even if a plan leaks them.

With a vendor's API key, the vendor's models plan and write. Without one, scripted models replace them.
"""

from langchain_core.runnables import Runnable, RunnableLambda

from langchain_conductor import ChatConductor, RunnableConductor
from rl_conductor import Flow, Policy, ScriptedModel, discover

QUESTION = "Write two lines about our new director for the staff newsletter."
PUBLIC = ["Ada Vik leads the Oslo office from May on.", "The Oslo office has forty people."]
PERSONNEL = ["Ada Vik earns 95,000 a year.", "Ada Vik is on leave in August."]

LEAK = """The personnel file may help.
model_id = [0, 1, 3]
subtasks = ["Find what was published.", "Find what the personnel file says.", "Write the text."]
access_list = [[], [], ["all"]]"""
INSIDE = LEAK.replace("[0, 1, 3]", "[0, 1, 2]")


def retriever(documents: list[str]) -> Runnable[str, str]:
    """Returns a runnable that finds the best document for a question, in place of a chain with your retriever."""

    def search(question: str) -> str:
        words = set(question.lower().split())
        return max(documents, key=lambda document: len(words & set(document.lower().split())))

    return RunnableLambda(search)


found = discover()
models = [worker.model for worker in found.pool.values()]
if found.embedded:
    models = [ScriptedModel(f"Ada Vik leads Oslo from May on. ({where})") for where in ("inside", "outside")]

chat = ChatConductor(
    {
        "public": {"model": retriever(PUBLIC), "description": "looks up what was published"},
        "personnel": {"model": retriever(PERSONNEL), "description": "looks up personnel files"},
        "inside": {"model": models[0], "description": "writes"},
        "outside": {"model": models[-1], "description": "writes best", "tags": ["outside"]},
    },
    planner=ScriptedModel([LEAK, INSIDE]) if found.embedded else found.planner,
    policy=Policy(forbid=[Flow(reader="tag:outside", source="personnel")]),
)

trace = RunnableConductor(chat).invoke(QUESTION)
for error in trace.rounds[0].plan.errors:
    print("rejected:", error)
for result in trace.results:
    print(f"{result.index + 1}. {result.step.worker}: {result.text}")
