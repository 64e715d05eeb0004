"""Research over documents, some of which a policy keeps from external models, even if a plan leaks them.

With a vendor's API key, the vendor's models plan and write. Without one, scripted models replace them.
"""

from langchain_core.runnables import RunnableLambda

from langchain_conductor import ChatConductor, RunnableConductor, RunnableModel
from rl_conductor import Card, Flow, Policy, ScriptedModel, Worker, discover

QUESTION = "Write two lines about our new director for the staff newsletter."
PUBLIC = ["Ada Vik leads the Oslo office from May on.", "The Oslo office has forty people."]
PERSONNEL = ["Ada Vik earns 95,000 a year.", "Ada Vik is on leave in August."]

LEAK = """The personnel file may help.
model_id = [0, 1, 3]
subtasks = ["Find what was published.", "Find what the personnel file says.", "Write the text."]
access_list = [[], [], ["all"]]"""
INSIDE = LEAK.replace("[0, 1, 3]", "[0, 1, 2]")


def document_worker(name: str, documents: list[str]) -> Worker:
    """Creates a worker that searches documents; any runnable works, such as a chain with your retriever."""

    def search(question: str) -> str:
        words = set(question.lower().split())
        return max(documents, key=lambda document: len(words & set(document.lower().split())))

    return Worker.of(name, RunnableModel(RunnableLambda(search)), card=Card(name=name, strengths="looks things up"))


def writers() -> list[Worker]:
    """Returns a worker that runs inside the company and one that runs outside."""
    models = [worker.model for worker in discover().pool.values()]
    if discover().embedded:
        models = [ScriptedModel(f"Ada Vik leads Oslo from May on. ({where})") for where in ("inside", "outside")]
    inside = Worker.of("inside", models[0], card=Card(name="inside", strengths="writes"))
    outside = Worker.of("outside", models[-1], card=Card(name="outside", strengths="writes best", tags={"outside"}))
    return [inside, outside]


workers = [document_worker("public", PUBLIC), document_worker("personnel", PERSONNEL), *writers()]
planner = ScriptedModel([LEAK, INSIDE]) if discover().embedded else discover().planner
policy = Policy(forbid=[Flow(reader="tag:outside", source="personnel")])
chat = ChatConductor(workers={worker.name: worker for worker in workers}, planner=planner, policy=policy)

trace = RunnableConductor(chat).invoke(QUESTION)
for error in trace.rounds[0].plan.errors:
    print("rejected:", error)
for result in trace.results:
    print(f"{result.index + 1}. {result.step.worker}: {result.text}")
