"""Retrievers and tools as workers: what they are asked, what they reply, and what they cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import StructuredTool, tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import Field, SecretStr

from core.runs import plan
from langchain_conductor import ChatConductor, ChatModel, RunnableModel, pool_of
from langchain_conductor.models.runnable_model import text_of_output
from rl_conductor import Limits, Policy, Price, Request, ScriptedModel
from rl_conductor.integration import price_of
from rl_conductor.types import FREE, Usage

PRICE = Price(input=1, output=1)
PASSAGES = [
    Document("Returns take 30 days.", metadata={"source": "rules.md", "page": 2}),
    Document("Keep the receipt."),
]


class Rules(BaseRetriever):
    """Finds the passages about returns."""

    queries: list[str] = Field(default_factory=list)

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        self.queries.append(query)
        return PASSAGES if "return" in query else []


@tool
def search(query: str) -> str:
    """Searches the web."""
    return f"found: {query}"


def first_reply(worker: Any, subtask: str = "return of bicycles", **settings: Any) -> tuple[str, Usage]:
    """The reply and the usage of a worker that does the first of two steps."""
    planner = ScriptedModel(plan((0, subtask, []), (1, "Answer.", ["all"])), price=PRICE)
    workers = {"search": worker, "writer": ScriptedModel("Yes.", price=PRICE)}
    chat = ChatConductor(workers, planner=planner, policy=Policy(final="writer"), **settings)
    trace = chat.conductor.run_sync(Request.user("May I return it?"), limits=settings.get("limits"))
    result = trace.results[0]
    assert result.step.worker == "search"
    return result.text, result.usage


WRAPPERS: dict[str, Callable[[Rules], Runnable[Any, Any]]] = {
    "alone": lambda rules: rules,
    "configured": lambda rules: rules.with_config(tags=["mine"]).with_retry(),
    "in a chain": lambda rules: rules | RunnableLambda(lambda documents: documents),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_retriever_searches_with_the_subtask_and_returns_its_passages(wrapper: str) -> None:
    rules = Rules()
    text, _ = first_reply(WRAPPERS[wrapper](rules))
    assert rules.queries == ["return of bicycles"]
    assert text == "source: rules.md\npage: 2\n\nReturns take 30 days.\n\nKeep the receipt."


def test_a_retriever_that_finds_nothing_says_so() -> None:
    assert first_reply(Rules(), "repairs")[0] == "(nothing was found)"


def test_a_tool_that_returns_nothing_says_so() -> None:
    @tool
    def look_up(query: str) -> None:
        """Looks a word up."""

    assert first_reply(look_up)[0] == "(nothing was found)"


def test_passages_that_a_function_returns_read_like_those_of_a_retriever() -> None:
    def find(subtask: str) -> list[Document]:
        return PASSAGES

    assert first_reply(find)[0] == first_reply(Rules())[0]


def test_a_tool_gets_the_subtask() -> None:
    assert first_reply(search)[0] == "found: return of bicycles"


def find_block(query: str) -> tuple[list[dict[str, Any]], None]:
    """Returns what tools of `langchain-mcp-adapters` return: blocks of text."""
    return [{"type": "text", "text": f"found: {query}"}, {"type": "text", "text": "2 more"}], None


MCP_TOOL = StructuredTool.from_function(
    find_block,
    name="search",
    args_schema={"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    response_format="content_and_artifact",
)
"""A tool with a JSON schema instead of a class, as `langchain-mcp-adapters` makes them."""


@pytest.mark.parametrize("worker", [MCP_TOOL, MCP_TOOL.with_config(tags=["mine"]).with_retry()])
def test_a_tool_of_an_mcp_server_gets_the_subtask_and_replies_with_its_text(worker: Any) -> None:
    assert first_reply(worker)[0] == "found: return of bicycles\n2 more"


def test_a_picture_that_a_tool_returns_is_a_note_and_other_lists_are_json() -> None:
    picture = {"type": "image", "base64": "AAAA", "mime_type": "image/png"}
    assert text_of_output([{"type": "text", "text": "A map."}, picture]) == "A map.\n[image not shown]"
    for files in ([{"type": "file", "name": "a.txt"}], [{"type": "text", "name": "a.txt"}]):
        assert json.loads(text_of_output(files) or "") == files


@pytest.mark.parametrize("worker", [Rules(), search, Rules() | RunnableLambda(str)], ids=["retriever", "tool", "chain"])
@pytest.mark.parametrize("limits", [None, Limits(usd=1)], ids=["no limits", "dollars"])
def test_without_a_model_they_are_free(worker: Any, limits: Limits | None) -> None:
    _, usage = first_reply(worker, limits=limits)
    assert usage == Usage(calls=1)


def test_a_price_for_each_call_can_be_given() -> None:
    _, usage = first_reply(
        {"model": search, "price": {"input": 0, "output": 0, "per_call": "0.01"}}, limits=Limits(usd=1)
    )
    assert (str(usage.cost), usage.unpriced_calls) == ("0.01", 0)


def test_a_model_that_was_not_found_in_a_tool_counts_as_unpriced() -> None:
    def ask(query: str) -> str:
        """Asks a model that the tool only makes when it is called."""
        return str(GPT().invoke(query).text)

    _, usage = first_reply(tool(ask))
    assert (usage.total_tokens, usage.unpriced_calls) == (15, 1)


class GPT(FakeListChatModel):
    """Says how many tokens it used."""

    responses: list[str] = Field(default_factory=lambda: ["Hm."])

    def _generate(self, *arguments: Any, **options: Any) -> Any:
        result = super()._generate(*arguments, **options)
        usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
        message = result.generations[0].message.model_copy(
            update={"usage_metadata": usage, "response_metadata": {"model_name": "gpt"}}
        )
        result.generations[0].message = message
        return result


def openai_model(name: str) -> BaseChatModel:
    return ChatOpenAI(model=name, api_key=SecretStr("sk-not-real"))


MINI, STRONG, UNKNOWN = (openai_model(name) for name in ("gpt-4o-mini", "gpt-4o", "gpt-unknown"))
FREE_INSIDE = ChatConductor(workers={"a": ScriptedModel("Hi.")}, planner=ScriptedModel(plan((0, "Answer.", []))))


def test_agents_and_chains_have_the_price_of_the_models_in_them() -> None:
    expected = price_of("openai", "gpt-4o-mini")
    assert expected is not None
    prompt = ChatPromptTemplate.from_template("{question}")
    workers: dict[str, Any] = {
        "agent": create_agent(MINI, [search]),
        "chain": prompt | MINI,
        "rag": Rules() | RunnableLambda(str) | MINI,
    }
    assert {name: worker.card.price for name, worker in pool_of(workers).items()} == dict.fromkeys(workers, expected)
    assert ChatModel(MINI).price == expected


def test_an_agent_with_models_of_several_prices_has_the_highest() -> None:
    models = [MINI, STRONG, FREE_INSIDE]
    chain: Any = RunnableLambda(lambda _: models)
    assert RunnableModel(chain).price == price_of("openai", "gpt-4o")


def test_models_in_global_variables_of_nodes_and_tools_are_found() -> None:
    def classify(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"]) for model in [MINI]]}

    def ask(query: str) -> str:
        """Asks a strong model."""
        return str((RunnableLambda(str) | STRONG).invoke(query).text)

    graph = StateGraph(MessagesState).add_node("classify", classify).add_edge(START, "classify").compile()
    assert RunnableModel(graph).price == price_of("openai", "gpt-4o-mini")
    assert RunnableModel(tool(ask)).price == price_of("openai", "gpt-4o")
    assert RunnableModel(create_agent(MINI, [ask])).price == price_of("openai", "gpt-4o")


@pytest.mark.parametrize("models", [(MINI, UNKNOWN), (UNKNOWN,)], ids=["one of two", "the only one"])
def test_a_model_of_an_unknown_price_leaves_the_price_open(models: tuple[BaseChatModel, ...]) -> None:
    chain: Any = RunnableLambda(lambda _: list(models))
    assert RunnableModel(chain).price is None


def test_a_chain_of_other_code_has_no_price() -> None:
    assert RunnableModel(RunnableLambda(str)).price is None
    assert RunnableModel(search).price == FREE


class Named(GPT):
    """Has the name of a model of OpenAI's, and so its price."""

    model_name: str

    def _get_ls_params(self, stop: Any = None, **options: Any) -> Any:
        return {"ls_provider": "openai", "ls_model_name": self.model_name}


def checked_by(hidden: str, first: str = "gpt-4o-mini") -> Runnable[Any, Any]:
    """A chain of a model that is found and one that only code names."""

    def check(reply: Any) -> str:
        return str(Named(model_name=hidden).invoke(reply.text).text)

    return Named(model_name=first) | RunnableLambda(check)


def expected_cost(*names: str) -> Decimal:
    prices = [price_of("openai", name) for name in names]
    return sum((price.cost(input_tokens=10, output_tokens=5) for price in prices if price), Decimal(0))


@pytest.mark.parametrize("first", ["gpt-4o-mini", "gpt-4o"])
@pytest.mark.parametrize("hidden", ["gpt-4o-mini", "gpt-4o"])
@pytest.mark.parametrize("limits", [None, Limits(usd=1)], ids=["no limits", "dollars"])
def test_each_call_of_a_chain_has_the_price_of_its_own_model(first: str, hidden: str, limits: Limits | None) -> None:
    _, usage = first_reply(checked_by(hidden, first), limits=limits)
    assert (usage.calls, usage.total_tokens, usage.unpriced_calls) == (2, 30, 0)
    assert usage.cost == expected_cost(first, hidden)


def test_only_the_call_of_a_model_without_a_price_that_only_code_names_is_unpriced_and_refused() -> None:
    chain = checked_by("gpt-unknown")
    assert RunnableModel(chain).price == price_of("openai", "gpt-4o-mini")
    _, usage = first_reply(chain)
    assert (usage.calls, usage.total_tokens, usage.unpriced_calls) == (2, 30, 1)
    assert usage.cost == expected_cost("gpt-4o-mini")

    planner = ScriptedModel(plan((0, "Look.", []), (1, "Answer.", ["all"])), price=PRICE)
    workers: dict[str, Any] = {"search": chain, "writer": ScriptedModel("Yes.", price=PRICE)}
    trace = ChatConductor(workers, planner=planner).conductor.run_sync("May I?", limits=Limits(usd=1))
    refused = trace.results[0].calls[0]
    assert "the price of gpt-unknown in langchain:RunnableSequence is unknown" in (refused.error or "")
    assert refused.usage.cost == expected_cost("gpt-4o-mini"), "its first call was made"


def test_a_price_that_is_given_holds_for_all_models() -> None:
    worker = {"model": checked_by("gpt-4o"), "price": {"input": 1, "output": 1}}
    _, usage = first_reply(worker, limits=Limits(usd=1))
    assert (usage.cost, usage.unpriced_calls) == (Decimal("0.00003"), 0)
