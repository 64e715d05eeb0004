"""Answers a question with the models of this machine: vendors' APIs, a local server, or tiny embedded models."""

from rl_conductor import Conductor

conductor = Conductor.from_env()
trace = conductor.run_sync("A shop sells pens at 3 dollars each. How much do 17 pens cost?")

print(trace.text)
print()
for result in trace.results:
    print(f"{result.index + 1}. {result.step.worker}: {result.step.subtask}")
for worker, usage in trace.usage_by_worker.items():
    print(f"{worker}: {usage.calls} calls, {usage.total_tokens} tokens, ${usage.cost}")
