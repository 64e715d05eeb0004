"""The usage and the price of the calls of LlamaIndex's LLMs."""

from __future__ import annotations

from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import llama_index.core
import pytest
import tiktoken
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import CompletionResponse, ImageBlock
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.llms import LLMMetadata
from llama_index.core.retrievers import QueryFusionRetriever
from typing_extensions import override

from llama_index.llms.conductor import Conductor, LLMModel
from llamaindex.scripts import EchoLLM, plan, planner
from rl_conductor import ConfigError, Limits, Message, Price, Request, RunError, ScriptedModel, SharedBudget, Usage
from rl_conductor.integration import price_of
from rl_conductor.models.prices import priced
from rl_conductor.types import ImagePart

QUESTION = Request.user("Why?")


def test_usage_is_read_from_the_response() -> None:
    llm = Conductor({"a": EchoLLM()}, planner=planner(plan((0, "Go.", []))))
    llm.complete("Why?")
    assert llm.trace is not None
    used = llm.trace.usage_by_worker["a"]
    assert (used.input_tokens, used.output_tokens, used.unpriced_calls) == (11, 3, 1)


class VendorEchoLLM(EchoLLM):
    """Returns a vendor's raw response."""

    raw: Any

    @override
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text="An echo.", raw=self.raw)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param(
            {
                "usage": {
                    "prompt_tokens": 100,
                    "prompt_tokens_details": {"cached_tokens": 80},
                    "completion_tokens": 50,
                    "completion_tokens_details": {"reasoning_tokens": 40},
                }
            },
            Usage(input_tokens=100, cached_tokens=80, output_tokens=50, reasoning_tokens=40),
            id="openai",
        ),
        pytest.param(
            SimpleNamespace(
                type="response.completed",
                response=SimpleNamespace(
                    usage={
                        "input_tokens": 100,
                        "input_tokens_details": {"cached_tokens": 80},
                        "output_tokens": 50,
                        "output_tokens_details": {"reasoning_tokens": 40},
                    }
                ),
            ),
            Usage(input_tokens=100, cached_tokens=80, output_tokens=50, reasoning_tokens=40),
            id="openai responses",
        ),
        pytest.param(
            {
                "usage": {
                    "input_tokens": 10,
                    "cache_read_input_tokens": 1000,
                    "cache_creation_input_tokens": 500,
                    "output_tokens": 20,
                    "output_tokens_details": None,
                }
            },
            Usage(input_tokens=1510, cached_tokens=1000, cache_write_tokens=500, output_tokens=20),
            id="anthropic",
        ),
        pytest.param(
            {
                "usage_metadata": {
                    "prompt_token_count": 100,
                    "tool_use_prompt_token_count": 5,
                    "cached_content_token_count": 80,
                    "candidates_token_count": 20,
                    "thoughts_token_count": 50,
                }
            },
            Usage(input_tokens=105, cached_tokens=80, output_tokens=70, reasoning_tokens=50),
            id="google",
        ),
        pytest.param(
            {"usage": {"inputTokens": 10, "cacheReadInputTokens": 30, "cacheWriteInputTokens": 5, "outputTokens": 7}},
            Usage(input_tokens=45, cached_tokens=30, cache_write_tokens=5, output_tokens=7),
            id="bedrock",
        ),
        pytest.param(
            {
                "usage": {
                    "prompt_tokens": 1510,
                    "cache_read_input_tokens": 1000,
                    "cache_creation_input_tokens": 500,
                    "completion_tokens": 20,
                }
            },
            Usage(input_tokens=1510, cached_tokens=1000, cache_write_tokens=500, output_tokens=20),
            id="a gateway to anthropic in openai's form",
        ),
        pytest.param(
            {
                "usage": {
                    "prompt_tokens": 32,
                    "completion_tokens": 9,
                    "completion_tokens_details": {"reasoning_tokens": 94},
                    "total_tokens": 135,
                }
            },
            Usage(input_tokens=32, output_tokens=103, reasoning_tokens=94),
            id="xai",
        ),
    ],
)
async def test_cached_and_reasoning_tokens_are_read_from_the_response(raw: Any, expected: Usage) -> None:
    price = Price(input=3, cached_input="0.3", cache_write="3.75", output=15)
    usage = (await LLMModel(VendorEchoLLM(raw=raw), price=price).complete(QUESTION)).usage
    assert usage == priced(expected, price)


ECHO = EchoLLM()
"""An LLM without a known price."""


def ask_llm(task: str) -> str:
    """Asks an LLM, which the trace does not see."""
    return str(ECHO.complete(task))


def ask_nobody(task: str) -> str:
    """Answers by itself."""
    return f"An echo of {task}"


@pytest.mark.parametrize(("function", "unpriced_calls"), [(ask_llm, 1), (ask_nobody, 0)])
def test_a_function_that_asks_an_llm_is_not_free(function: Any, unpriced_calls: int) -> None:
    llm = Conductor({"a": function, "b": EchoLLM()}, planner=planner(plan((0, "Go.", []))))
    llm.complete("Why?")
    assert llm.trace is not None
    assert llm.trace.usage_by_worker["a"].unpriced_calls == unpriced_calls


@pytest.mark.parametrize(("llm", "unpriced_calls"), [(ECHO, 1), (None, 0)])
def test_a_retriever_that_asks_an_llm_is_not_free(llm: EchoLLM | None, unpriced_calls: int) -> None:
    index = VectorStoreIndex.from_documents([Document(text="A kite.")], embed_model=MockEmbedding(embed_dim=2))
    retriever: BaseRetriever = index.as_retriever()
    if llm is not None:
        retriever = QueryFusionRetriever([retriever], llm=llm, use_async=False)
    conductor = Conductor({"a": retriever, "b": EchoLLM()}, planner=planner(plan((0, "Go.", []))))
    conductor.complete("Why?")
    assert conductor.trace is not None
    assert conductor.trace.usage_by_worker["a"].unpriced_calls == unpriced_calls


def test_an_engine_whose_llm_is_a_conductor_of_llms_costs_only_its_calls() -> None:
    priced_worker = {"model": EchoLLM(), "price": {"input": 1, "output": 1}}
    inner = Conductor({"a": priced_worker}, planner=planner(plan((0, "Go.", []))))
    engine = VectorStoreIndex.from_documents(
        [Document(text="Kites need wind.")], embed_model=MockEmbedding(embed_dim=8)
    ).as_query_engine(llm=inner)
    llm = Conductor({"engine": engine}, planner=planner(plan((0, "Go.", []))), limits=Limits(usd="1"))
    assert str(llm.complete("Why?")) == "An echo."
    assert llm.trace is not None
    used = llm.trace.usage_by_worker["engine"]
    assert (used.calls, used.unpriced_calls, used.cost) == (2, 0, Decimal("0.000014"))


def test_an_engine_that_asks_an_llm_beside_its_conductor_is_not_free() -> None:
    echo = EchoLLM()
    inner = Conductor({"a": echo}, planner=planner(plan((0, "Go.", []))))

    def ask_both(task: str) -> str:
        return str(inner.complete(task)) + str(echo.complete(task))

    llm = Conductor({"both": ask_both}, planner=planner(plan((0, "Go.", []))), limits=Limits(usd="1"))
    with pytest.raises(RunError, match="price"):
        llm.complete("Why?")


def test_a_function_may_have_a_price_for_each_call() -> None:
    worker = {"model": ask_llm, "price": {"input": 0, "output": 0, "per_call": "0.25"}}
    llm = Conductor({"a": worker, "b": EchoLLM()}, planner=planner(plan((0, "Go.", []))), limits=Limits(usd=1))
    llm.complete("Why?")
    assert llm.trace is not None
    assert llm.trace.usage_by_worker["a"].cost == Decimal("0.25")


class SilentEchoLLM(EchoLLM):
    """Reports no usage."""

    @override
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=super().complete(prompt, formatted, **kwargs).text)


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": -1_000_000, "completion_tokens": -5},
        {"prompt_tokens": float("nan"), "completion_tokens": "12"},
        {"prompt_tokens": {"text": 1}, "completion_tokens": None},
        "12 tokens",
    ],
)
async def test_tokens_that_can_not_be_are_estimated_and_the_reply_is_kept(usage: Any) -> None:
    completion = await LLMModel(VendorEchoLLM(raw={"usage": usage}), price=Price(input=1, output=1)).complete(QUESTION)
    estimated = await LLMModel(SilentEchoLLM(), price=Price(input=1, output=1)).complete(QUESTION)
    assert completion.text == "An echo."
    assert completion.usage == estimated.usage
    assert completion.usage.cost > 0


@pytest.mark.parametrize(("worker", "tokens"), [(EchoLLM(), 3), (SilentEchoLLM(), 0)])
def test_a_reply_survives_a_tokenizer_that_cannot_be_downloaded(
    worker: EchoLLM, tokens: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: str) -> tiktoken.Encoding:
        raise ConnectionError("no network")

    monkeypatch.setattr(llama_index.core, "global_tokenizer", None)
    monkeypatch.setattr(tiktoken, "encoding_for_model", fail)
    llm = Conductor({"a": worker}, planner=planner(plan((0, "Go.", []))))
    assert llm.complete("Why?").text == "An echo."
    assert llm.trace is not None
    assert llm.trace.usage_by_worker["a"].output_tokens == tokens
    assert ("no network" in caplog.text) is isinstance(worker, SilentEchoLLM)


async def test_a_price_can_be_set() -> None:
    model = LLMModel(EchoLLM(), price=Price(input=1_000_000, output=0))
    assert (await model.complete(QUESTION)).usage.cost == 11


@pytest.mark.parametrize(("tier", "unpriced"), [("default", 0), ("priority", 1), ("flex", 1)])
async def test_a_call_of_a_tier_with_its_own_price_is_unpriced(tier: str, unpriced: int) -> None:
    raw = {"usage": {"prompt_tokens": 3, "completion_tokens": 2}, "service_tier": tier}
    completion = await LLMModel(VendorEchoLLM(raw=raw), price=Price(input=1, output=1)).complete(QUESTION)
    assert completion.usage.unpriced_calls == unpriced


class MistralEchoLLM(EchoLLM):
    """A model of a vendor's package."""

    __module__ = "llama_index.llms.mistralai.base"

    @property
    @override
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="mistral-large-latest")


class EnhancedMistralEchoLLM(MistralEchoLLM):
    """A user's subclass of it."""


@pytest.mark.parametrize("kind", [MistralEchoLLM, EnhancedMistralEchoLLM])
def test_the_published_price_of_a_vendors_model_is_the_default(kind: type[EchoLLM]) -> None:
    known = price_of("mistral", "mistral-large-latest")
    assert known is not None
    assert LLMModel(kind()).price == known
    assert LLMModel(EchoLLM()).price is None


def test_limits_in_dollars_work_if_the_entry_of_an_llm_has_a_price() -> None:
    worker = {"model": EchoLLM(), "price": {"input": "2.5", "output": 10}}
    llm = Conductor({"a": worker}, planner=planner(plan((0, "Go.", []))), limits=Limits(usd=1))
    raw: Any = llm.complete("Why?").raw
    assert raw["usage"]["cost"] == "0.0000575"
    assert llm.conductor.pool["a"].card.price == Price(input="2.5", output=10)


def test_the_error_for_an_unknown_price_says_where_to_write_it() -> None:
    llm = Conductor({"a": EchoLLM()}, planner=planner(plan((0, "Go.", []))), limits=Limits(usd=1))
    with pytest.raises(RunError, match=r"write its price in dollars per million tokens.* in its entry"):
        llm.complete("Why?")


def test_a_wrong_price_in_an_entry_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"worker 'a' is invalid: price\.input"):
        Conductor({"a": {"model": EchoLLM(), "price": {"input": "cheap", "output": 1}}})
    nested = Conductor({"a": ScriptedModel("Hi.")})
    with pytest.raises(ConfigError, match="worker 'a': the price of a NestedConductorModel can't be set in its entry"):
        Conductor({"a": {"model": nested, "price": {"input": 1, "output": 1}}})


async def test_images_of_a_conversation_are_not_fetched_to_count_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*_: object, **__: object) -> None:
        raise AssertionError("fetched")

    monkeypatch.setattr(ImageBlock, "resolve_image", fetch)
    request = Request(messages=(Message.user("What is it?", ImagePart(url="http://10.0.0.1/internal.png")),))
    seeing = LLMModel(SilentEchoLLM())
    seeing.capabilities = seeing.capabilities.model_copy(update={"images": True})
    assert (await seeing.complete(request)).text == "An echo."


async def test_runs_spend_from_a_shared_budget() -> None:
    price = Price(input=1, output=10)
    workers = {"clerk": ScriptedModel("17 pens.", price=price)}
    llm = Conductor(workers, planner=ScriptedModel(plan((0, "Answer.", [])), price=price))
    budget = SharedBudget()
    with budget.applied():
        llm.complete("Pens?")
        list(llm.stream_complete("Blue pens?"))
        await llm.acomplete("Red pens?")
    llm.complete("Other pens?")

    assert budget.spending.calls == 6
    assert budget.spending.usd > 0
