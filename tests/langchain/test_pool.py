"""Pools and Conductors are built from LangChain models, runnables and core models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import SecretStr

from core.pools import TRAINED
from core.runs import plan
from langchain_conductor import (
    ChatConductor,
    ChatModel,
    RunnableConductor,
    RunnableModel,
    create_conductor,
    pool_of,
)
from langchain_conductor.conductors import resolve_pool
from langchain_conductor.tracing import TracedModel
from rl_conductor import (
    Card,
    ConfigError,
    Planner,
    Policy,
    PolicyError,
    Price,
    Sampling,
    ScriptedModel,
    Worker,
    WorkerPool,
)
from rl_conductor.models import Model

LONE = plan((0, "Answer.", []))


def fake() -> FakeListChatModel:
    return FakeListChatModel(responses=["Hello."])


def chain() -> Any:
    return RunnableLambda(lambda _: "Hello.")


def model_of(model: Model) -> Model:
    return model.model if isinstance(model, TracedModel) else model


def test_a_pool_takes_any_mix() -> None:
    scripted = ScriptedModel("Hi.")
    inner = ChatConductor(workers={"a": scripted}, planner=ScriptedModel(LONE))
    pool = pool_of(
        {
            "chat": fake(),
            "chain": chain(),
            "named": "ollama:llama3.2",
            "model": scripted,
            "worker": Worker.of("other", scripted, card=Card(name="other", strengths="sums")),
            "conductor": inner,
        }
    )
    kinds = [type(worker.model).__name__ for worker in pool.values()]
    assert kinds == ["ChatModel", "RunnableModel", "OllamaModel", "ScriptedModel", "ScriptedModel", "Conductor"]
    assert [card.name for card in pool.cards] == list(pool)
    assert pool["worker"].card.strengths == "sums"
    assert pool["conductor"].model is inner.conductor


def test_a_pool_is_taken_as_it_is() -> None:
    pool = WorkerPool({"a": ScriptedModel("Hi.")})
    assert pool_of(pool) is pool


def test_a_langchain_model_keeps_its_max_tokens_and_a_core_one_gets_a_default() -> None:
    brief = ChatOpenAI(model="m", api_key=SecretStr("k"), max_completion_tokens=500)
    pool = pool_of({"chat": fake(), "brief": brief, "model": ScriptedModel("Hi.")})
    assert pool["chat"].sampling.max_tokens is None
    assert pool["brief"].sampling.max_tokens == 500  # what a budget then reserves
    assert pool["model"].sampling.max_tokens == 4096


def test_a_price_can_be_given_to_a_chat_model() -> None:
    price = Price(input=1, output=2)
    assert pool_of({"chat": ChatModel(fake(), price=price)})["chat"].card.price == price


@pytest.mark.parametrize(
    ("workers", "expected_error"),
    [
        (
            {"a": 7},
            "worker 'a': 7 is not a model; write a chat model, a runnable, a function, 'provider:model' or",
        ),
        ({"a": "gpt-5"}, "worker 'a': no model 'gpt-5': write 'provider:model'"),
        ({"a": "nobody:x"}, "worker 'a': no model 'nobody:x'"),
        ({}, "a pool needs at least one worker"),
        (["ollama:x"], "workers is a list; write {'name': model, ...}"),
    ],
    ids=str,
)
def test_an_invalid_worker_is_refused_by_name(workers: Any, expected_error: str) -> None:
    with pytest.raises(ConfigError, match=expected_error):
        pool_of(workers)


def test_a_missing_key_is_an_error_at_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ConfigError, match="worker 'a': openai:gpt-5 needs a key: set OPENAI_API_KEY"):
        ChatConductor(workers={"a": "openai:gpt-5"})


@pytest.mark.parametrize("make", [create_conductor, RunnableConductor])
def test_an_invalid_conductor_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match="conductor is 'openai:gpt-5'; write a ChatConductor, "):
        make("openai:gpt-5")


def test_an_impossible_policy_is_an_error_at_construction() -> None:
    with pytest.raises(PolicyError, match=r"policy.final is 'nobody'.* the pool has only a"):
        ChatConductor(workers={"a": fake()}, policy=Policy(final="nobody"))


def test_the_first_language_model_plans_unless_another_is_named() -> None:
    resolved = resolve_pool({"agent": chain(), "chat": fake()})
    assert isinstance(model_of(resolved.planner.model), ChatModel)
    explicit = resolve_pool({"agent": chain()}, ScriptedModel(LONE, name="planner"))
    assert explicit.planner.model.name == "scripted:planner"
    planner = Planner(model=ScriptedModel(LONE), samples=1)
    assert resolve_pool({"agent": chain()}, planner).planner.samples == 1


def test_agents_alone_cannot_plan() -> None:
    with pytest.raises(ConfigError, match=r"none of the workers can plan.*: agent, clock; .* write planner="):
        resolve_pool({"agent": chain(), "clock": lambda subtask: subtask})


def test_a_profile_is_part_of_the_conductors_name() -> None:
    model = ChatConductor(workers={"a": ScriptedModel("Hi.")}, model="mini")
    assert model.conductor.name == "conductor:conductor-mini"
    assert model._prepare([HumanMessage("Hi.")], None, {"model": "ultra"}).conductor.name == "conductor:conductor-ultra"


def test_a_model_in_place_of_a_profile_is_an_error_that_says_where_it_goes() -> None:
    expected = "no profile 'tiny': write 'mini' or 'ultra'; a model to work with goes into workers="
    with pytest.raises(ConfigError, match=expected):
        ChatConductor(workers={"a": fake()}, model="tiny")
    with pytest.raises(ConfigError, match="model is a FakeListChatModel, but it names a profile; a model to work with"):
        ChatConductor(model=fake())


def test_a_profile_for_one_call_keeps_the_limits_of_a_pool_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pool.toml"
    path.write_text(f"{TRAINED}[workers.a]\nmodel = 'ollama:small'\n")
    monkeypatch.setenv("RL_CONDUCTOR_POOL", str(path))
    model = ChatConductor()
    run = model._prepare([HumanMessage("Hi.")], None, {"model": "ultra"})
    for conductor in (model.conductor, run.conductor):
        assert conductor.planner.examples == 0
        assert conductor.config.access == "positional"
        assert conductor.limits.steps == 3
    assert run.conductor.limits.rounds == 2


def test_every_call_is_traced_once_even_if_a_conductor_is_wrapped_again() -> None:
    resolved = resolve_pool({"a": ScriptedModel("Hi.")})
    again = resolve_pool(resolved.pool, resolved.planner)
    assert isinstance(again.pool["a"].model, TracedModel)
    assert isinstance(again.pool["a"].model.model, ScriptedModel)
    assert not isinstance(model_of(again.planner.model), TracedModel)


def test_capabilities_of_a_runnable_can_be_set() -> None:
    able = ChatModel(fake()).capabilities
    assert pool_of({"a": RunnableModel(chain(), capabilities=able)})["a"].model.capabilities.images


def find_price(question: str) -> str:
    """Looks up prices.

    It knows the shop's list only.
    """
    return f"{question}: 3 dollars"


@tool
def weather(city: str) -> str:
    """Tells the weather of a city."""
    return f"It rains in {city}."


def test_the_planner_reads_names_and_descriptions_of_agents_graphs_tools_and_functions() -> None:
    planner = ScriptedModel(LONE)
    graph = StateGraph(MessagesState).add_node("say", lambda _: {"messages": ["Hi."]})
    graph.add_edge(START, "say")
    workers: dict[str, Any] = {
        "math_expert": fake(),
        "research_expert": {"model": chain(), "description": "Finds facts on the web."},
        "prices": RunnableLambda(find_price),
        "sky": weather,
        "team": graph.compile(name="support_team"),
        "other": graph.compile(),
        "named": {"model": "ollama:qwen3", "description": "Writes code.", "strengths": "Python"},
    }

    ChatConductor(workers=workers, planner=planner).invoke("What is it?")

    _, _, models = planner.requests[0].messages[0].text.partition("The models ($ per million tokens in/out):\n")
    assert models.splitlines() == [
        "0 math_expert",
        "1 research_expert: Finds facts on the web",
        "2 prices: Looks up prices",
        "3 sky: Tells the weather of a city; free",
        "4 team: support_team",
        "5 other",
        "6 named: Writes code; Python; free",
    ]


def test_an_entry_keeps_the_settings_of_its_chat_model() -> None:
    chat = ChatOpenAI(model="gpt-5", max_completion_tokens=77, api_key=SecretStr("k"))
    pool = pool_of({"a": {"model": chat, "description": "Writes."}, "b": chat})

    assert pool["a"].sampling == pool["b"].sampling == Sampling(max_tokens=77)
    assert pool["a"].card.description == "Writes."
    with pytest.raises(ConfigError, match=r"worker 'a' is invalid: speed: there is no such setting"):
        pool_of({"a": {"model": chat, "speed": 3}})


@pytest.mark.parametrize("as_entry", [False, True])
def test_a_function_is_a_worker(*, as_entry: bool) -> None:
    def shout(subtask: str) -> str:
        """Says it louder."""
        return subtask.upper()

    worker: Any = {"model": shout, "description": "shouts"} if as_entry else shout
    chat = ChatConductor({"loud": worker}, planner=ScriptedModel(plan((0, "Say it.", []))))
    assert chat.invoke("hi").text == "SAY IT."
    assert chat.conductor.pool["loud"].card.description == ("shouts" if as_entry else "Says it louder.")


@pytest.mark.parametrize(
    "returned", [AIMessage("It rains."), {"messages": [HumanMessage("?"), AIMessage("It rains.")]}]
)
def test_the_text_of_a_message_that_a_function_returns_is_the_reply(returned: object) -> None:
    chat = ChatConductor({"sky": lambda _: returned}, planner=ScriptedModel(plan((0, "Look.", []))))
    assert chat.invoke("How is the weather?").text == "It rains."


def test_the_core_names_the_package_for_a_langchain_model_and_does_not_print_its_client() -> None:
    chat: Any = FakeListChatModel(responses=["secret"])
    with pytest.raises(ConfigError) as caught:
        WorkerPool({"a": chat})
    assert str(caught.value) == (
        "worker 'a': FakeListChatModel belongs to another framework; langchain-conductor takes it as a worker"
    )
