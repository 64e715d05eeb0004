"""The documents of the LlamaIndex examples, and a small embedding model that needs neither an API key nor torch."""

from pathlib import Path
from typing import Any

import wordllama
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.embeddings import BaseEmbedding
from pydantic import PrivateAttr

CORPUS = Path(__file__).parents[1] / "tests/llamaindex/corpus"


class WordEmbedding(BaseEmbedding):
    """WordLlama's static vectors: 16 MB that are part of its package."""

    _model: Any = PrivateAttr()

    def __init__(self) -> None:
        super().__init__(model_name="wordllama")
        self._model = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)

    def _get_text_embedding(self, text: str) -> list[float]:
        return [float(number) for number in self._model.embed([text])[0]]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


def index_of(*silos: str) -> VectorStoreIndex:
    """Returns an index of a fictitious company's documents, of all silos or of the given ones."""
    paths = sorted(path for path in CORPUS.glob("*/*.txt") if not silos or path.parent.name in silos)
    documents = [Document(text=path.read_text(), metadata={"title": path.stem}) for path in paths]
    return VectorStoreIndex.from_documents(documents, embed_model=WordEmbedding())


if __name__ == "__main__":
    question = "How long is parental leave?"
    for result in index_of().as_retriever(similarity_top_k=2).retrieve(question):
        print(f"{result.score:.2f}  {result.node.metadata['title']}: {result.node.get_content()}")
