from llama_index.core import Document, SummaryIndex
from llama_index.core.query_engine import RouterQueryEngine
from llama_index.core.selectors import LLMMultiSelector
from llama_index.core.tools import QueryEngineTool
from llama_index.llms.openai import OpenAI

llm = OpenAI(model="gpt-4.1")
data = SummaryIndex.from_documents([Document(text="Heron: 12.4 kg, 1,890 euros. Kestrel: 9.8 kg, 2,350 euros.")])
rules = SummaryIndex.from_documents([Document(text="Bicycles may be returned within 30 days, for a fee of 50 euros.")])

engine = RouterQueryEngine.from_defaults(
    [
        QueryEngineTool.from_defaults(data.as_query_engine(llm=llm), name="data", description="weights and prices"),
        QueryEngineTool.from_defaults(rules.as_query_engine(llm=llm), name="rules", description="orders and returns"),
    ],
    llm=llm,
    selector=LLMMultiSelector.from_defaults(llm=llm),
)
response = engine.query("What does the Heron cost, and what if I send it back?")
print(response)
print([node.text for node in response.source_nodes])
