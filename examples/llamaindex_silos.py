"""Two indexes as workers; a policy keeps the text of the HR index from an external vendor, even if a plan leaks it."""

from llamaindex_corpus import index_of

from llama_index.llms.conductor import Conductor, pool_of
from rl_conductor import Flow, Policy, Request, ScriptedModel, discover

QUESTION = "Write to the head of the frame workshop: what she earns, and what the frame of the Heron weighs."

# A planner may be tricked into a leak: this plan sends the reply of the HR index to the external vendor.
LEAK = """The letter needs both indexes.
model_id = [0, 1, 3]
subtasks = ["What does Anna Lindqvist earn?", "What does the frame of the Heron weigh?", "Write the letter."]
access_list = [[], [], [0, 1]]"""
SAFE = LEAK.replace("[0, 1, 3]", "[0, 1, 2]")


def write_letter(request: Request) -> str:
    """Writes a letter from the facts in the prompt, as a model would."""
    prompt = request.messages[-1].text
    return (
        "Dear Anna," + "".join(f" you earn {n} euros;" for n in ["5,400"] if n in prompt) + " the frame weighs 310 g."
    )


discovered = discover()
real = next(iter(discovered.pool.values())).model
scripted = discovered.embedded  # without an API key or a server, use the plans and letters above
outside = ScriptedModel(write_letter, name="outside") if scripted else real
pool = pool_of(
    {
        "hr": index_of("hr").as_retriever(similarity_top_k=1),
        "engineering": index_of("engineering").as_retriever(similarity_top_k=1),
        "inside": ScriptedModel(write_letter, name="inside") if scripted else real,
        "outside": outside,
    }
)
llm = Conductor(
    pool,
    planner=ScriptedModel([LEAK, SAFE]) if scripted else discovered.planner,
    policy=Policy(forbid=(Flow(reader="outside", source="hr"),)),
    access="positional",
)

print(llm.complete(QUESTION))
assert llm.trace is not None
for planned in llm.trace.rounds:
    for error in planned.plan.errors:
        print("rejected:", error)
    for repair in planned.plan.repairs:
        print("repaired:", repair)
for result in llm.trace.results:
    reads = ", ".join(str(i + 1) for i in sorted(result.step.access)) or "nothing"
    print(f"{result.index + 1}. {result.step.worker} reads {reads}: {result.step.subtask}")
for call in llm.trace.calls:
    assert call.worker != "outside" or "5,400" not in str(call.request), "the salary was leaked"
