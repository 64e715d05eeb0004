"""One line makes the Conductor the LLM of a query engine; it uses the models of this machine."""

from llama_index.core import Settings
from llamaindex_corpus import index_of

from llama_index.llms.conductor import Conductor
from rl_conductor import Limits

Settings.llm = llm = Conductor(limits=Limits(steps=2))  # instead of OpenAI(...), Anthropic(...), Ollama(...)

answer = index_of().as_query_engine(similarity_top_k=1).query("How many weeks of parental leave are there?")

print(answer)
print("source:", ", ".join(node.node.metadata["title"] for node in answer.source_nodes))
assert llm.trace is not None
for result in llm.trace.results:
    print(f"{result.index + 1}. {result.step.worker}: {result.step.subtask}")
print(f"{llm.trace.usage.total_tokens} tokens, ${llm.trace.usage.cost}")
