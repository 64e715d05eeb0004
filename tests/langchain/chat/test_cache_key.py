"""Conductors share answers in LangChain's caches only if everything that may change an answer is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.caches import InMemoryCache
from langchain_core.language_models import FakeListChatModel
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import ConfigurableField, RunnableConfig, RunnableLambda
from langchain_core.runnables.config import set_config_context

from langchain_conductor import ChatConductor
from langchain_conductor.models import ChatModel
from rl_conductor import Planner, Policy, Worker, model


def says(text: str) -> FakeListChatModel:
    return FakeListChatModel(responses=[text])


def served(host: str, **options: Any) -> ChatConductor:
    worker = model("openai:gpt-5", base_url=f"http://{host}/v1", api_key="sk-none", **options)
    return ChatConductor({"a": worker}, planner=says("plan"))


def planned(**settings: Any) -> ChatConductor:
    return ChatConductor({"a": says("A.")}, planner=Planner(model=ChatModel(says("plan")), **settings))


def instructed(instructions: str) -> ChatConductor:
    worker = Worker.of("a", ChatModel(says("A.")), instructions=instructions)
    return ChatConductor({"a": worker}, planner=says("plan"))


def answered_by(worker: Any) -> ChatConductor:
    return ChatConductor({"a": worker}, planner=says("plan"))


def chain(instructions: str) -> ChatConductor:
    return answered_by(ChatPromptTemplate([("system", instructions), ("human", "{question}")]) | says("A."))


DIFFERENT: dict[str, tuple[Callable[..., ChatConductor], Any, Any]] = {
    "the address of a core model": (served, "one.example", "two.example"),
    "the options of a core model": (lambda body: served("one.example", extra_body=body), {}, {"top_k": 1}),
    "the instructions of a worker": (instructed, "Cook.", "Judge."),
    "the planner's instructions": (lambda text: planned(instructions=text), "Check.", "Hurry."),
    "the planner's form": (lambda form: planned(form=form), "rows", "object"),
    "the planner's examples": (lambda count: planned(examples=count), 0, 3),
    "the access": (lambda access: ChatConductor({"a": says("A.")}, access=access), "binary", "positional"),
    "the form of the answer": (lambda version: ChatConductor({"a": says("A.")}, output_version=version), "v0", "v1"),
    "the stop sequences": (lambda stop: ChatConductor({"a": says("A.")}, stop=stop), "X", "Y"),
    "a chain": (chain, "Cook.", "Judge."),
    "an agent": (lambda prompt: answered_by(create_agent(says("A."), system_prompt=prompt)), "Cook.", "Judge."),
    "a nested conductor": (lambda text: answered_by(ChatConductor({"b": says(text)})), "A.", "B."),
}


@pytest.mark.parametrize("part", DIFFERENT)
def test_conductors_that_differ_in_one_part_have_different_keys(part: str) -> None:
    create, one, other = DIFFERENT[part]
    assert create(one)._get_llm_string() != create(other)._get_llm_string()


@pytest.mark.parametrize("create", [lambda: served("one.example"), lambda: instructed("Cook."), planned])
def test_conductors_that_are_equal_in_every_part_share_a_key(create: Callable[[], ChatConductor]) -> None:
    assert create()._get_llm_string() == create()._get_llm_string()


def test_the_key_of_a_core_model_does_not_contain_its_api_key() -> None:
    assert "sk-none" not in served("one.example")._get_llm_string()


def test_a_function_answers_from_the_cache_only_for_its_own_conductor() -> None:
    cache = InMemoryCache()

    def conducting(text: str) -> ChatConductor:
        worker: Any = RunnableLambda(lambda _: text)
        return ChatConductor({"a": worker}, planner=says("plan"), policy=Policy(single="a"), cache=cache)

    one, other = conducting("A"), conducting("B")
    assert [chat.invoke("Hello").text for chat in (one, other, one)] == ["A", "B", "A"]
    assert len(cache._cache) == 2


def test_the_key_follows_a_setting_that_is_assigned_later() -> None:
    chat = planned()
    before = chat._get_llm_string()
    chat.instructions = "Check."
    assert chat._get_llm_string() != before


def test_a_model_that_a_config_chooses_has_another_key() -> None:
    configurable = says("A.").configurable_fields(responses=ConfigurableField("responses"))
    chat = answered_by(configurable)
    before = chat._get_llm_string()
    config: RunnableConfig = {"configurable": {"responses": ["B."]}}
    with set_config_context(config) as context:
        assert context.run(chat._get_llm_string) != before


def test_a_call_whose_config_chooses_another_model_is_not_answered_from_the_cache() -> None:
    configurable: Any = says("A.").configurable_fields(responses=ConfigurableField("responses"))
    chat = ChatConductor({"a": configurable}, policy=Policy(single="a"), cache=InMemoryCache())
    configs: list[RunnableConfig] = [{}, {"configurable": {"responses": ["B."]}}, {}]
    assert [chat.invoke("Hello", config).text for config in configs] == ["A.", "B.", "A."]


def test_a_function_that_may_read_the_config_is_called_again_for_another_one() -> None:
    def greet(_: Any, config: RunnableConfig) -> str:
        return f"Hello {config['configurable']['user']}"

    worker: Any = RunnableLambda(greet)
    cache = InMemoryCache()
    chat = ChatConductor({"a": worker}, planner=says("plan"), policy=Policy(single="a"), cache=cache)
    configs: list[RunnableConfig] = [
        {"configurable": {"user": user, "checkpoint_ns": place}} for user, place in (("A", "1"), ("B", "2"), ("A", "3"))
    ]
    assert [chat.invoke("Hello", config).text for config in configs] == ["Hello A", "Hello B", "Hello A"]
    assert len(cache._cache) == 2
