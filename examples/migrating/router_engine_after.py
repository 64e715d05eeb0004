from llama_index.core import Document, SummaryIndex
from llama_index.llms.openai import OpenAI

from llama_index.llms.conductor import Conductor

llm = OpenAI(model="gpt-4.1")
data = SummaryIndex.from_documents([Document(text="Heron: 12.4 kg, 1,890 euros. Kestrel: 9.8 kg, 2,350 euros.")])
rules = SummaryIndex.from_documents([Document(text="Bicycles may be returned within 30 days, for a fee of 50 euros.")])

engine = Conductor(
    {
        "data": {"model": data.as_retriever(), "description": "weights and prices"},
        "rules": {"model": rules.as_retriever(), "description": "orders and returns"},
        "writer": {"model": llm, "description": "answers from what others found"},
    },
    planner=llm,
)
response = engine.complete("What does the Heron cost, and what if I send it back?")
print(response)
assert response.raw is not None
print([node["text"] for source in response.raw["sources"] for node in source["source_nodes"]])
