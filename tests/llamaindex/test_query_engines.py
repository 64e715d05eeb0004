"""Query engines over a small corpus with a real embedding model, and the steps that see the retrieved passages."""

from __future__ import annotations

import json
import random
import re
import threading
import traceback
from typing import Any

import pytest
from llama_index.core import PromptTemplate, Settings, VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.chat_engine.types import ChatMode
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.indices.query.query_transform.base import IdentityQueryTransform
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.query_engine import (
    CitationQueryEngine,
    CustomQueryEngine,
    RouterQueryEngine,
    SubQuestionQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.selectors import PydanticSingleSelector
from llama_index.core.tools import QueryEngineTool

from core.runs import SOON
from llama_index.llms.conductor import Conductor, QueryEngineModel, RetrieverModel
from llama_index.llms.conductor.models.results import EMPTY_RESULT
from llamaindex.scripts import EchoLLM, conductor, plan, planner, request_text, scripted_worker, tool_call_reply
from rl_conductor import ConfigError, Flow, Policy, Request, RunError, ScriptedModel
from rl_conductor.prompting.worker_prompt import Evidence, worker_prompt

Indexes = dict[str, VectorStoreIndex]


def quote_numbers(request: Request) -> str:
    """Answers with the numbers in the request, so that an answer proves which passages were visible."""
    return " ".join(re.findall(r"\d[\d,.]*\d", request_text(request))) or "no numbers"


def test_a_query_engine_answers_from_the_retrieved_passages(indexes: Indexes) -> None:
    llm = conductor(second=quote_numbers)
    answer = indexes["all"].as_query_engine(llm=llm, similarity_top_k=1).query("What does the Heron cost?")
    assert "189" in str(answer)
    assert answer.source_nodes[0].node.metadata["title"] == "prices"


async def test_a_query_engine_answers_in_async_calls(indexes: Indexes) -> None:
    engine = indexes["all"].as_query_engine(llm=conductor(second=quote_numbers), similarity_top_k=1)
    assert "189" in str(await engine.aquery("What does the Heron cost?"))


def test_a_query_engine_streams(indexes: Indexes) -> None:
    llm = conductor(second=["The Heron costs 189 euros."] * 9)
    engine = indexes["all"].as_query_engine(llm=llm, streaming=True, similarity_top_k=1)
    response: Any = engine.query("What does the Heron cost?")
    pieces = list(response.response_gen)
    assert len(pieces) > 3
    assert "".join(pieces) == "The Heron costs 189 euros."


@pytest.mark.parametrize("mode", ["refine", "tree_summarize", "compact", "simple_summarize"])
def test_every_response_mode_works(indexes: Indexes, mode: Any) -> None:
    engine = indexes["all"].as_query_engine(llm=conductor(second=quote_numbers), response_mode=mode, similarity_top_k=3)
    assert "189" in str(engine.query("What does the Heron cost?"))


def test_citations_refer_to_the_sources(indexes: Indexes) -> None:
    llm = conductor(second=lambda request: f"See [1]. {quote_numbers(request)}")
    engine = CitationQueryEngine.from_args(indexes["all"], llm=llm, similarity_top_k=2)
    answer = engine.query("How long is parental leave?")
    assert "20" in str(answer)
    assert "Source 1" in answer.source_nodes[0].node.get_content()
    assert "Source 1" in request_text(scripted_worker(llm, "writer").requests[0])


def tools(indexes: Indexes, llm: Conductor) -> list[QueryEngineTool]:
    return [
        QueryEngineTool.from_defaults(indexes[silo].as_query_engine(llm=llm, similarity_top_k=1), silo, f"about {silo}")
        for silo in ("hr", "sales")
    ]


def test_a_router_uses_the_engine_that_the_conductor_selects(indexes: Indexes) -> None:
    def selecting(request: Request) -> Any:
        return (
            tool_call_reply(request.tools[0].name, index=2, reason="prices")
            if request.tools
            else quote_numbers(request)
        )

    llm = conductor(second=selecting)
    selector = PydanticSingleSelector.from_defaults(llm=llm)
    engine = RouterQueryEngine.from_defaults(tools(indexes, llm), llm=llm, selector=selector)
    answer = engine.query("What does the Heron cost?")
    assert "189" in str(answer)
    assert answer.metadata is not None
    assert answer.metadata["selector_result"].ind == 1


@pytest.mark.parametrize("use_async", [True, False])
def test_sub_questions_go_to_their_engines(indexes: Indexes, use_async: bool) -> None:
    split = json.dumps(
        {
            "items": [
                {"sub_question": "How long is parental leave?", "tool_name": "hr"},
                {"sub_question": "What does the Heron cost?", "tool_name": "sales"},
            ]
        }
    )

    def splitting(request: Request) -> str:
        return split if "sub_question" in request_text(request) else quote_numbers(request)

    llm = conductor(second=splitting)
    engine = SubQuestionQueryEngine.from_defaults(
        tools(indexes, llm),
        llm=llm,
        question_gen=LLMQuestionGenerator.from_defaults(llm=llm),
        use_async=use_async,
        verbose=False,
    )
    answer = str(engine.query("How long is parental leave, and what does the Heron cost?"))
    assert "20" in answer
    assert "189" in answer


@pytest.mark.parametrize("mode", [ChatMode.CONTEXT, ChatMode.CONDENSE_QUESTION, ChatMode.CONDENSE_PLUS_CONTEXT])
def test_a_chat_engine_remembers_and_retrieves(indexes: Indexes, mode: ChatMode) -> None:
    llm = conductor(second=quote_numbers)
    memory = ChatMemoryBuffer.from_defaults(llm=llm)  # the default memory leaves its database open
    engine = indexes["all"].as_chat_engine(chat_mode=mode, llm=llm, memory=memory, similarity_top_k=1)
    assert "189" in str(engine.chat("What does the Heron cost?"))
    engine.chat("What does the Heron cost, and why?")
    second = scripted_worker(llm, "writer").requests[-2:]  # the question is condensed and answered in one call or two
    assert any("What does the Heron cost?" in request_text(request) for request in second)


# -------------------------------------------------------------------------------- indexes as workers

LOOK_UP = plan(
    (0, "What does Anna Lindqvist earn?", []),
    (1, "What does the Heron cost?", []),
    (2, "Write a price tag.", [1]),
    (3, "Answer.", [0, 2]),
)
SALARY, PRICE = "5,400", "189 euros"


def introduce(name: str) -> str:
    """Returns the reply of the worker called `name`."""
    return f"I am {name}."


def index_conductor(
    indexes: Indexes, text: str = LOOK_UP, says: Any = introduce, **options: Any
) -> tuple[Conductor, dict[str, ScriptedModel]]:
    models = {name: ScriptedModel(says(name), name=name) for name in ("designer", "chief")}
    workers: dict[str, Any] = {silo: indexes[silo].as_retriever(similarity_top_k=1) for silo in ("hr", "sales")}
    return Conductor(workers | models, planner=planner(text), access="positional", **options), models


def test_passages_reach_exactly_the_steps_that_may_read_them(indexes: Indexes) -> None:
    llm, models = index_conductor(indexes)
    llm.complete("Tell me about money.")
    designer, chief = (request_text(models[name].requests[0]) for name in ("designer", "chief"))
    assert PRICE in designer
    assert SALARY not in designer
    assert SALARY in chief
    assert PRICE not in chief
    assert "I am designer." in chief


def test_a_policy_keeps_an_index_from_a_worker_whatever_the_plan(indexes: Indexes) -> None:
    leak = plan((0, "What does Anna Lindqvist earn?", []), (3, "Sum up.", [0]), (2, "Write a letter.", [1]))
    policy = Policy(forbid=(Flow(reader="designer", source="hr"),))
    llm, models = index_conductor(indexes, leak, policy=policy)
    llm.complete("Write about Anna Lindqvist.")
    assert llm.trace is not None
    assert llm.trace.rounds[0].plan.errors or llm.trace.rounds[0].plan.repairs
    assert all(SALARY not in request_text(request) for request in models["designer"].requests)


def test_no_random_plan_leaks_an_index(indexes: Indexes) -> None:
    draw = random.Random(7)
    policy = Policy(forbid=(Flow(reader="designer", source="hr"),))
    leaks = 0
    for _ in range(60):
        steps = [
            (draw.randrange(4), "What does Anna Lindqvist earn?", [i for i in range(place) if draw.random() < 0.6])
            for place in range(draw.randint(2, 4))
        ]
        llm, models = index_conductor(indexes, plan(*steps), says=lambda _: quote_numbers, policy=policy)
        llm.complete("Write about Anna Lindqvist.")
        assert all(SALARY not in request_text(request) for request in models["designer"].requests)
        leaks += any(SALARY in request_text(request) for request in models["chief"].requests)
    assert leaks > 2


def test_token_counters_show_the_swarm_tax(indexes: Indexes, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = {}
    for name, policy in (("conductor", Policy()), ("alone", Policy(single="writer"))):
        counter = TokenCountingHandler()
        monkeypatch.setattr(Settings, "_callback_manager", CallbackManager([counter]))
        llm = conductor(second=quote_numbers, policy=policy)
        indexes["all"].as_query_engine(llm=llm, similarity_top_k=1).query("What does the Heron cost?")
        assert llm.trace is not None
        assert counter.total_llm_token_count == llm.trace.usage.total_tokens
        usage[name] = (llm.trace.usage.calls, llm.trace.usage.total_tokens)
    assert usage["alone"][0] == 1
    assert usage["conductor"][0] == 3
    assert usage["conductor"][1] > 3 * usage["alone"][1]


async def test_a_retriever_searches_with_its_subtask(indexes: Indexes) -> None:
    evidence = [Evidence(label="1", subtask="Who mends sails?", reply="Torn sails are repair_steps free of charge.")]
    prompt = worker_prompt("Tell me all.", evidence, "What does the Heron cost?", key="k")
    completion = await RetrieverModel(indexes["all"].as_retriever(similarity_top_k=1)).complete(Request.user(prompt))
    assert PRICE in completion.text
    assert "Torn" not in completion.text
    assert completion.usage.cost == 0


async def test_a_query_engine_retrieves_with_its_subtask_and_reads_the_whole_prompt(indexes: Indexes) -> None:
    echo = EchoLLM()
    template = PromptTemplate("CONTEXT {context_str} QUERY {query_str}")
    engine = indexes["all"].as_query_engine(llm=echo, similarity_top_k=1, text_qa_template=template)
    prompt = worker_prompt("Write to Anna.", [], "What does the Heron cost?", key="k")
    reply = await QueryEngineModel(engine, name="all").complete(Request.user(prompt))
    assert (reply.text, reply.model, reply.usage.unpriced_calls) == ("An echo.", "llamaindex:all", 1)
    assert PRICE in echo.prompts[0]
    assert "Write to Anna." in echo.prompts[0]


def test_an_engine_has_the_description_of_its_tool(indexes: Indexes) -> None:
    writer = ScriptedModel("Done.")
    tool = QueryEngineTool.from_defaults(indexes["hr"].as_query_engine(llm=EchoLLM()), "hr", "who earns what")
    llm = Conductor([tool, writer], planner=(user_messages := planner(plan((1, "Go.", [])))))
    llm.complete("Why?")
    assert "who earns what" in request_text(user_messages.requests[0])


def test_an_index_cannot_plan(indexes: Indexes) -> None:
    with pytest.raises(ConfigError, match="none of the workers can plan"):
        Conductor({"hr": indexes["hr"].as_retriever()})


def test_the_first_language_model_plans(indexes: Indexes) -> None:
    writer = ScriptedModel([LOOK_UP.replace("[0, 1, 2, 3]", "[0, 0, 1, 1]"), "One.", "Two."])
    llm = Conductor({"hr": indexes["hr"].as_retriever(), "writer": writer}, access="positional")
    assert llm.complete("Why?").text == "Two."


BARRIER = threading.Barrier(2, timeout=SOON)


class Archive(CustomQueryEngine):
    """A custom query engine without async methods, which answers only while `Shelf` runs too."""

    def custom_query(self, query_str: str) -> str:
        BARRIER.wait()
        return "It is in the archive."


class Shelf(BaseRetriever):
    """A custom retriever without async methods, which answers only while `Archive` runs too."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        BARRIER.wait()
        return [NodeWithScore(node=TextNode(text="It is on the shelf."))]


KEY = "sk-very-secret"


class Hosted(CustomQueryEngine):
    """A query engine that calls a service with a key, and fails."""

    api_key: str = KEY

    def custom_query(self, query_str: str) -> str:
        raise OSError(f"the line is down, and Bearer {self.api_key} was the key")


class Store(BaseRetriever):
    """A retriever over a store with a key, and fails."""

    def __init__(self) -> None:
        super().__init__()
        self._client = {"api_key": KEY}

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        raise OSError(f"the line is down, and Bearer {self._client['api_key']} was the key")


def failing_source(indexes: Indexes, kind: str) -> BaseQueryEngine | BaseRetriever:
    """Returns an engine or retriever whose error message contains its key."""
    engine = indexes["hr"].as_query_engine(llm=EchoLLM(fails=True))
    match kind:
        case "index":
            return engine
        case "nested":
            return TransformQueryEngine(engine, IdentityQueryTransform())
        case "hosted":
            return Hosted()
    return Store()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["index", "nested", "hosted", "store"])
async def test_errors_of_engines_and_retrievers_contain_no_keys(indexes: Indexes, kind: str, *, stream: bool) -> None:
    llm = Conductor({"docs": failing_source(indexes, kind)}, planner=planner(plan((0, "Look it up.", []))))
    with pytest.raises(RunError) as caught:
        await llm._core.run("Why?", stream=stream)
    leaks = "".join(traceback.format_exception(caught.value)) + caught.value.trace.model_dump_json()
    assert "raised OSError: the line is down, and Bearer [secret] was" in leaks
    assert KEY not in leaks


async def test_engines_and_retrievers_without_async_methods_run_in_parallel() -> None:
    steps = plan((0, "One.", []), (1, "Two.", []), (2, "Both.", [0, 1]))
    workers = {"archive": Archive(), "shelf": Shelf(), "both": (both := ScriptedModel("Done."))}
    llm = Conductor(workers, planner=planner(steps), access="positional")
    await llm.acomplete("Where is it?")
    assert not BARRIER.broken
    assert "in the archive" in request_text(both.requests[0])
    assert "on the shelf" in request_text(both.requests[0])


def test_an_empty_retrieval_is_reported_as_such() -> None:
    nothing = VectorStoreIndex([], embed_model=MockEmbedding(embed_dim=4)).as_retriever()
    llm = Conductor({"a": nothing, "b": ScriptedModel("x")}, planner=planner(plan((0, "Look.", []))))
    assert llm.complete("Why?").text == EMPTY_RESULT


def test_another_worker_takes_the_step_of_a_failing_engine(indexes: Indexes) -> None:
    engine = indexes["hr"].as_query_engine(llm=EchoLLM(fails=True))
    llm = Conductor({"hr": engine, "writer": ScriptedModel("I do it.")}, planner=planner(plan((0, "Look.", []))))
    assert llm.complete("Why?").text == "I do it."
    alone = Conductor({"hr": engine}, planner=planner(plan((0, "Look.", []))))
    with pytest.raises(RunError, match="the line is down"):
        alone.complete("Why?")
