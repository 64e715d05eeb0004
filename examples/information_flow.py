"""A policy keeps the replies of one worker from another, even through other steps and replacement workers."""

from rl_conductor import Conductor, Flow, Policy, RunError, ScriptedModel, Step, Workflow, WorkflowError

workers = {
    "hr": ScriptedModel("Anna earns 5,000."),
    "inside": ScriptedModel("A summary of the evidence."),
    "outside": ScriptedModel("A letter."),
}
policy = Policy(forbid=[Flow(reader="outside", source="hr")])
conductor = Conductor(workers["inside"], workers, policy=policy, access="positional")

leak = Workflow(
    steps=[
        Step(subtask="Look up Anna's salary.", worker="hr"),
        Step(subtask="Summarise it.", worker="inside", access={0}),
        Step(subtask="Write a letter.", worker="outside", access={1}),
    ]
)
try:
    conductor.run_sync("Write to Anna.", workflow=leak)
except (WorkflowError, RunError) as error:
    print(error)

safe = Workflow(steps=[*leak.steps[:2], Step(subtask="Write a letter.", worker="inside", access={1})])
print(conductor.run_sync("Write to Anna.", workflow=safe).text)
