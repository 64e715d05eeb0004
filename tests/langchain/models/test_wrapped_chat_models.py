"""A chat model with bound options, a config, retries or fallbacks stays a chat model when it is a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain.chat_models import init_chat_model
from langchain_anthropic import ChatAnthropic
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import HumanMessage
from langchain_core.runnables import ConfigurableField, RunnableConfig, RunnableLambda
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from core.models.wire.base import SECRET
from core.runs import plan
from langchain_conductor import ChatConductor, ChatModel, RunnableConductor, RunnableModel, create_conductor, pool_of
from langchain_vendor import REFUSAL, AnthropicVendor, Vendor
from rl_conductor import ConfigError, ScriptedModel

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    with Vendor.running() as service:
        yield service


def openai_model(vendor: Vendor, name: str = "gpt-4o-mini", **options: Any) -> ChatOpenAI:
    return ChatOpenAI(model=name, base_url=f"{vendor.url}/v1", api_key=SECRET, max_retries=0, **options)


WRAPPERS: dict[str, Callable[[ChatOpenAI], Any]] = {
    "bind": lambda chat: chat.bind(user="me"),
    "with_config": lambda chat: chat.with_config(tags=["mine"]),
    "with_retry": lambda chat: chat.with_retry(stop_after_attempt=2),
    "with_fallbacks": lambda chat: chat.with_fallbacks([chat]),
    "configurable_fields": lambda chat: chat.configurable_fields(temperature=ConfigurableField(id="t")),
    "configurable_alternatives": lambda chat: chat.configurable_alternatives(ConfigurableField(id="llm"), b=chat),
    "init_chat_model": lambda chat: init_chat_model(
        "openai:gpt-4o-mini",
        configurable_fields=("model", "temperature"),
        base_url=chat.openai_api_base,
        api_key=SECRET,
        max_retries=0,
    ),
    "all": lambda chat: (
        chat.bind(user="me").with_retry().with_fallbacks([chat.with_retry()]).with_config(tags=["mine"])
    ),
}


@pytest.fixture(params=WRAPPERS)
def wrapped(request: pytest.FixtureRequest, vendor: Vendor) -> Any:
    return WRAPPERS[request.param](openai_model(vendor))


def conductor(worker: Any, **options: Any) -> ChatConductor:
    planner = ScriptedModel(plan((0, "Answer.", [])))
    return ChatConductor(workers={"writer": worker}, planner=planner, max_retries=0, **options)


def test_it_is_a_chat_model_with_the_capabilities_of_one(vendor: Vendor, wrapped: Any) -> None:
    model, plain = pool_of({"a": wrapped})["a"].model, ChatModel(openai_model(vendor))
    assert isinstance(model, ChatModel)
    assert (model.name, model.price, model.capabilities) == (plain.name, plain.price, plain.capabilities)


class Reply(BaseModel):
    """A reply."""


def test_tools_work_through_it(vendor: Vendor, wrapped: Any) -> None:
    def now() -> str:
        """The time."""
        return "noon"

    reply = conductor(wrapped).bind_tools([now]).invoke("hi")
    assert [call["name"] for call in reply.tool_calls] == ["now"]


def test_schemas_work_through_it(vendor: Vendor, wrapped: Any) -> None:
    class Place(BaseModel):
        city: str

    assert conductor(wrapped).with_structured_output(Place).invoke("In 'Ulm'") == Place(city="Ulm")


def test_images_reach_it(vendor: Vendor, wrapped: Any) -> None:
    question = HumanMessage([{"type": "image", "base64": PNG, "mime_type": "image/png"}, {"type": "text", "text": "?"}])
    conductor(wrapped).invoke([question])
    assert PNG in str(vendor.last.body["messages"])


@pytest.mark.parametrize("url", ["https://x/y.png", f"data:image/png;base64,{PNG}"])
def test_the_detail_of_an_image_and_the_developer_role_reach_it(vendor: Vendor, wrapped: Any, url: str) -> None:
    image = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    messages: list[Any] = [("developer", "Be brief."), HumanMessage([{"type": "text", "text": "?"}, image])]
    conductor(wrapped).invoke(messages)
    developer, question = vendor.last.body["messages"]
    assert developer == {"role": "developer", "content": "Be brief."}
    assert question["content"][-1] == image


def test_its_errors_are_langchains(vendor: Vendor) -> None:
    with pytest.raises(ContextOverflowError):
        conductor(openai_model(vendor, "context")).invoke("hi")


def test_the_text_of_a_refusal_is_the_answer(vendor: Vendor) -> None:
    reply = conductor(openai_model(vendor, "refusing")).invoke("hi")
    assert (reply.text, reply.response_metadata["finish_reason"]) == (REFUSAL, "content_filter")


def test_settings_reach_it_and_its_tokens_are_streamed(vendor: Vendor, wrapped: Any) -> None:
    chunks = [chunk.text for chunk in conductor(wrapped, temperature=0.25, stop=["END"]).stream("hi") if chunk.text]
    assert chunks == ["Hello", " to", " you", "."]
    assert (vendor.last.body["temperature"], vendor.last.body["stop"]) == (0.25, ["END"])


def test_it_can_plan(vendor: Vendor, wrapped: Any) -> None:
    workers = {"drafter": wrapped, "writer": ScriptedModel("Done.")}
    reply = ChatConductor(workers=workers).invoke("hi")
    steps = reply.response_metadata["conductor"]["rounds"][0]["steps"]
    assert [step["subtask"] for step in steps] == ["Draft an answer.", "Answer."]


def test_bound_options_hold_unless_the_call_sets_them(vendor: Vendor) -> None:
    bound = openai_model(vendor).bind(temperature=0.5, seed=3, user="me")
    conductor(bound).invoke("hi")
    body = vendor.last.body
    assert (body["temperature"], body["seed"], body["user"]) == (0.5, 3, "me")
    conductor(bound, temperature=0.25).invoke("hi")
    body = vendor.last.body
    assert (body["temperature"], body["seed"], body["user"]) == (0.25, 3, "me")


def test_bound_tools_give_way_to_those_of_the_call(vendor: Vendor) -> None:
    def now() -> str:
        """The time."""
        return "noon"

    def later() -> str:
        """The time after this."""
        return "one"

    reply = conductor(openai_model(vendor).bind_tools([now])).bind_tools([later]).invoke("hi")
    assert [call["name"] for call in reply.tool_calls] == ["later"]


WEB_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
ASK = {"name": "ask", "description": "Asks the caller.", "input_schema": {"type": "object"}}


@pytest.fixture
def searching() -> Iterator[tuple[AnthropicVendor, Any]]:
    """A vendor, and its model with a search that the vendor runs and with a function."""
    with AnthropicVendor.running() as anthropic:
        options: Any = {"base_url": anthropic.url, "api_key": SECRET, "max_retries": 0}
        yield anthropic, ChatAnthropic(model="claude", **options).bind_tools([WEB_SEARCH, ASK])


def tools_of_last_request(vendor: AnthropicVendor) -> list[str]:
    return [tool["name"] for tool in vendor.last.body["tools"]]


def test_a_search_on_the_vendors_server_stays_beside_the_tools_of_the_request(searching: Any) -> None:
    vendor, worker = searching
    conductor(worker).bind_tools([Reply], tool_choice="Reply").invoke("hi")
    assert tools_of_last_request(vendor) == ["web_search", "Reply"]


def test_a_search_on_the_vendors_server_stays_beside_the_schema_of_the_request(searching: Any) -> None:
    vendor, worker = searching
    conductor(worker).with_structured_output(Reply).invoke("hi")
    assert tools_of_last_request(vendor) == ["web_search", "Reply"]
    conductor(worker).bind_tools([Reply], tool_choice="Reply", response_format=Reply).invoke("hi")
    assert tools_of_last_request(vendor) == ["web_search", "Reply"]


def test_a_planner_does_not_search(searching: Any) -> None:
    vendor, worker = searching
    chat = ChatConductor({name: {"model": worker, "description": name} for name in "ab"}, planner=worker)
    assert RunnableConductor(chat).plan.invoke("hi").record.source == "planner"
    assert "web_search" not in tools_of_last_request(vendor)


CONFIGURABLE: dict[str, Callable[[ChatOpenAI], Any]] = {
    "fields": lambda chat: chat.configurable_fields(model_name=ConfigurableField(id="model")),
    "alternatives": lambda chat: chat.configurable_alternatives(
        ConfigurableField(id="model"), default_key="small", o3=chat.model_copy(update={"model_name": "o3"})
    ),
    "init_chat_model": WRAPPERS["init_chat_model"],
}


@pytest.mark.parametrize("kind", CONFIGURABLE)
def test_the_config_of_a_graph_configures_it(vendor: Vendor, kind: str) -> None:
    chat = conductor(CONFIGURABLE[kind](openai_model(vendor)), temperature=0.25)
    builder = StateGraph(MessagesState)
    builder.add_node("node", lambda state: {"messages": chat.invoke(state["messages"])})
    builder.add_node("solve", create_conductor(chat))
    graph: Any = builder.add_edge(START, "node").add_edge("node", "solve").compile()
    graph.invoke({"messages": "hi"}, {"configurable": {"model": "o3"}})
    graph.invoke({"messages": "hi"})
    sent = [(request.body["model"], request.body["temperature"]) for request in vendor.requests]
    assert sent == [("o3", 0.25)] * 2 + [("gpt-4o-mini", 0.25)] * 2


DIRECT_CALLS: dict[str, Callable[[ChatConductor, Any], Any]] = {
    "invoke": lambda chat, config: chat.invoke("hi", config),
    "stream": lambda chat, config: list(chat.stream("hi", config)),
    "batch": lambda chat, config: chat.batch(["hi"], config),
    "with_config": lambda chat, config: chat.with_config(config).invoke("hi"),
    "bind_tools": lambda chat, config: chat.bind_tools([Reply]).invoke("hi", config),
    "stream_events": lambda chat, config: chat.stream_events("hi", config, version="v3").output,
}


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")
@pytest.mark.parametrize("kind", CONFIGURABLE)
@pytest.mark.parametrize("call", DIRECT_CALLS)
def test_the_config_of_a_direct_call_configures_it(vendor: Vendor, kind: str, call: str) -> None:
    chat = conductor(CONFIGURABLE[kind](openai_model(vendor)))
    DIRECT_CALLS[call](chat, {"configurable": {"model": "o3"}})
    DIRECT_CALLS[call](chat, {})
    assert [request.body["model"] for request in vendor.requests] == ["o3", "gpt-4o-mini"]


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")
async def test_the_config_of_an_awaited_call_configures_it() -> None:
    fake = FakeListChatModel(responses=["A."]).configurable_fields(responses=ConfigurableField("replies"))
    chat, config = conductor(fake), RunnableConfig(configurable={"replies": ["B."]})
    assert (await chat.ainvoke("hi", config)).text == "B."
    assert "".join([chunk.text async for chunk in chat.astream("hi", config)]) == "B."
    assert (await (await chat.astream_events("hi", config, version="v3")).output).text == "B."
    events = [event async for event in chat.astream_events("hi", config, version="v2")]
    assert events[-1]["data"]["output"].text == "B."


def test_a_model_that_only_a_config_chooses_is_refused_with_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"worker 'a': .* write .*init_chat_model\('provider:model'"):
        pool_of({"a": init_chat_model(temperature=0)})


def test_retries_and_fallbacks_stay_in_force(vendor: Vendor) -> None:
    broken = openai_model(vendor, "server-error")
    retrying = broken.with_retry(stop_after_attempt=2, wait_exponential_jitter=False)
    reply = conductor(retrying.with_fallbacks([openai_model(vendor)])).invoke("hi")
    assert reply.text == "Hello to you."
    assert [request.body["model"] for request in vendor.requests] == ["server-error", "server-error", "gpt-4o-mini"]


def test_callbacks_of_with_config_stay_in_force(vendor: Vendor) -> None:
    starts: list[Any] = []

    class Recorder(BaseCallbackHandler):
        def on_chat_model_start(self, *_: Any, **kwargs: Any) -> None:
            starts.append(kwargs["tags"])

    conductor(openai_model(vendor).with_config(callbacks=[Recorder()], tags=["mine"])).invoke("hi")
    assert len(starts) == 1
    assert "mine" in starts[0]


def test_a_fallback_that_can_do_less_limits_the_capabilities(vendor: Vendor) -> None:
    model = ChatModel(openai_model(vendor).with_fallbacks([FakeListChatModel(responses=["Hi."])]))
    assert model.capabilities.names == {"images"}


@pytest.mark.parametrize(("own", "fallback", "expected"), [(9, 20, 20), (9, -1, None), (None, 20, None)])
def test_the_longest_reply_is_that_of_the_model_with_the_largest_limit(
    vendor: Vendor, own: int | None, fallback: int, expected: int | None
) -> None:
    models = openai_model(vendor, max_tokens=own), openai_model(vendor, max_tokens=fallback)
    assert ChatModel(models[0].with_fallbacks([models[1]])).max_tokens == expected


def test_a_chat_model_with_a_chain_as_its_fallback_is_a_runnable(vendor: Vendor) -> None:
    chain: Any = RunnableLambda(lambda _: "Hi.")
    with_chain = openai_model(vendor).with_fallbacks([chain])
    assert isinstance(pool_of({"a": with_chain})["a"].model, RunnableModel)
    with pytest.raises(ConfigError, match=r"chat is .*; write a chat model, or RunnableModel"):
        ChatModel(with_chain)
