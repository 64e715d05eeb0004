"""An existing RAG chain in which only the model is replaced; it streams as before.

    -from langchain_openai import ChatOpenAI
    +from langchain_conductor import ChatConductor
    ...
    -model = ChatOpenAI(model="gpt-6-luna")
    +model = ChatConductor()

It uses the models of this machine: vendors' APIs, a local server, or tiny embedded models.
"""

from pathlib import Path

import wordllama
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_conductor import ChatConductor

HANDBOOK = [
    "Parental leave is 26 weeks at full pay, for every parent, in the child's first year.",
    "Flights are booked in economy class; above nine hours, premium economy is allowed.",
    "A laptop is replaced after four years, or at once when it is broken.",
    "Invoices are paid on the first Tuesday after they were approved.",
    "The office in Oslo closes at 16:00 in July.",
]


class WordEmbeddings(Embeddings):
    """WordLlama's static vectors, which are part of its package: an embedding model without an API key or torch."""

    def __init__(self) -> None:
        here = Path(wordllama.__file__).parent
        self._model = wordllama.WordLlama.load(cache_dir=here, disable_download=True)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [vector.tolist() for vector in self._model.embed(texts)]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


def join_documents(documents: list[Document]) -> str:
    return "\n".join(document.page_content for document in documents)


store = InMemoryVectorStore.from_texts(HANDBOOK, WordEmbeddings())
prompt = ChatPromptTemplate.from_template("Answer only from this context:\n{context}\n\nQuestion: {question}")
model = ChatConductor()
chain = (
    {"context": store.as_retriever(search_kwargs={"k": 2}) | join_documents, "question": RunnablePassthrough()}
    | prompt
    | model
    | StrOutputParser()
)

for chunk in chain.stream("How many weeks of parental leave do I get?"):
    print(chunk, end="", flush=True)
print()
