"""Source nodes and response metadata of indexes and query engines that are workers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.query_engine import CitationQueryEngine, CustomQueryEngine, RouterQueryEngine
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import QueryEngineTool

from llama_index.llms.conductor import Conductor
from llamaindex.scripts import EchoLLM, plan, planner, user_messages
from rl_conductor import ScriptedModel, Trace

Indexes = dict[str, VectorStoreIndex]

LOOK_UP = plan((0, "What does Anna Lindqvist earn?", []), (1, "What does the Heron cost?", []), (2, "Answer.", ["all"]))


def conductor_over(hr: Any, sales: Any, **options: Any) -> Conductor:
    workers = {"hr": hr, "sales": sales, "writer": ScriptedModel("5,400 and 189 euros.")}
    return Conductor(workers, planner=planner(LOOK_UP), **options)


def retrievers(indexes: Indexes) -> list[Any]:
    return [indexes[silo].as_retriever(similarity_top_k=1) for silo in ("hr", "sales")]


def test_the_response_contains_the_source_nodes_of_each_step(indexes: Indexes) -> None:
    response: Any = conductor_over(*retrievers(indexes)).chat(user_messages("Why?"))

    sources = response.raw["sources"]
    assert [(source["round"], source["step"], source["worker"]) for source in sources] == [
        (0, 0, "hr"),
        (0, 1, "sales"),
    ]
    (salary,), (price,) = (source["source_nodes"] for source in sources)
    assert salary["metadata"]["title"] == "salaries"
    assert "5,400" in salary["text"]
    assert price["node_id"] in {node.node_id for node in response.additional_kwargs["source_nodes"]}
    assert isinstance(price["score"], float)
    json.dumps(response.raw)


def test_completions_and_streams_contain_the_source_nodes_too(indexes: Indexes) -> None:
    llm = conductor_over(*retrievers(indexes))
    raw = llm.complete("Why?").raw
    assert raw is not None
    assert len(raw["sources"]) == 2
    *deltas, last = llm.stream_chat(user_messages("Why?"))
    assert [delta.raw for delta in deltas] == [None] * len(deltas)
    assert [node.node.metadata["title"] for node in last.additional_kwargs["source_nodes"]] == ["salaries", "prices"]


@pytest.mark.parametrize("streaming", [False, True])
async def test_query_engines_return_their_source_nodes(indexes: Indexes, streaming: bool) -> None:
    engines = [
        indexes[silo].as_query_engine(llm=EchoLLM(), similarity_top_k=1, streaming=streaming)
        for silo in ("hr", "sales")
    ]
    llm = conductor_over(*engines)
    response = await llm.achat(user_messages("Why?"))
    assert llm.trace is not None
    assert [result.text for result in llm.trace.results] == ["An echo.", "An echo.", "5,400 and 189 euros."]
    assert [node.node.metadata["title"] for node in response.additional_kwargs["source_nodes"]] == [
        "salaries",
        "prices",
    ]


def test_a_query_engine_may_stream_in_sync_calls(indexes: Indexes) -> None:
    engine = indexes["hr"].as_query_engine(llm=EchoLLM(), similarity_top_k=1, streaming=True)
    response = conductor_over(engine, engine).chat(user_messages("Why?"))
    assert len(response.additional_kwargs["source_nodes"]) == 1  # both steps found the same node


def test_citations_refer_to_the_source_nodes_in_their_order(indexes: Indexes) -> None:
    engine = CitationQueryEngine.from_args(indexes["hr"], llm=EchoLLM(), similarity_top_k=2)
    llm = Conductor({"hr": engine}, planner=planner(plan((0, "How long is parental leave?", []))))
    response: Any = llm.chat(user_messages("Why?"))
    texts = [node["text"] for node in response.raw["sources"][0]["source_nodes"]]
    assert [text.partition("\n")[0] for text in texts] == ["Source 1:", "Source 2:"]


def test_the_choice_of_a_router_is_in_the_metadata(indexes: Indexes) -> None:
    tools = [
        QueryEngineTool.from_defaults(indexes[silo].as_query_engine(llm=EchoLLM(), similarity_top_k=1), silo, silo)
        for silo in ("hr", "sales")
    ]
    choosing = Conductor({"chooser": ScriptedModel('[{"choice": 2, "reason": "prices"}]')})
    router = RouterQueryEngine.from_defaults(tools, llm=EchoLLM(), selector=LLMSingleSelector.from_defaults(choosing))
    llm = Conductor({"router": router}, planner=planner(plan((0, "What does the Heron cost?", []))))
    response: Any = llm.chat(user_messages("Why?"))
    (source,) = response.raw["sources"]
    assert source["metadata"] == {"selector_result": {"selections": [{"index": 1, "reason": "prices"}]}}
    assert source["source_nodes"][0]["metadata"]["title"] == "prices"
    json.dumps(response.raw)


def test_a_nested_conductor_returns_the_source_nodes_of_its_workers(indexes: Indexes) -> None:
    inner = conductor_over(*retrievers(indexes))
    outer = Conductor({"inner": inner}, planner=planner(plan((0, "Go.", []))))
    response: Any = outer.chat(user_messages("Why?"))
    assert [node["metadata"]["title"] for node in response.raw["sources"][0]["source_nodes"]] == ["salaries", "prices"]
    *_, last = outer.stream_chat(user_messages("Why?"))
    assert last.additional_kwargs["source_nodes"] == response.additional_kwargs["source_nodes"]


def test_serialised_traces_do_not_contain_source_nodes(indexes: Indexes) -> None:
    llm = conductor_over(*retrievers(indexes))
    llm.complete("Why?")
    assert llm.trace is not None
    assert "source_nodes" not in llm.trace.model_dump_json()
    assert Trace.model_validate_json(llm.trace.model_dump_json()).usage == llm.trace.usage


def test_without_retrieval_there_are_no_sources() -> None:
    llm = Conductor({"writer": ScriptedModel("Hi.")}, planner=planner(plan((0, "Go.", []))))
    response: Any = llm.chat(user_messages("Why?"))
    assert "sources" not in response.raw
    assert "source_nodes" not in response.additional_kwargs


def test_an_engine_without_an_answer_is_a_failure_and_not_the_word_none() -> None:
    class Silent(CustomQueryEngine):
        def custom_query(self, query_str: str) -> str:
            return ""

    workers = {"hr": Silent(), "writer": ScriptedModel("I do it.")}
    llm = Conductor(workers, planner=planner(plan((0, "What does Anna Lindqvist earn?", []))))
    assert llm.complete("Why?").text == "I do it."


@pytest.mark.parametrize("kind", ["nodes", "response"])
def test_functions_return_the_source_nodes_of_their_results(indexes: Indexes, kind: str) -> None:
    def look_up(task: str) -> Any:
        """Looks up salaries."""
        index = indexes["hr"]
        if kind == "nodes":
            return index.as_retriever(similarity_top_k=1).retrieve(task)
        return index.as_query_engine(llm=EchoLLM(), similarity_top_k=1).query(task)

    response: Any = conductor_over(look_up, EchoLLM()).chat(user_messages("Why?"))
    assert [source["worker"] for source in response.raw["sources"]] == ["hr"]
    assert [node.node.metadata["title"] for node in response.additional_kwargs["source_nodes"]] == ["salaries"]
