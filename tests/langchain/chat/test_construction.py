"""`ChatConductor` explains wrong settings and honours settings that change later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

from core.runs import plan
from langchain_conductor import ChatConductor, RunnableConductor, create_conductor
from rl_conductor import Capabilities, Conductor, ConfigError, Policy, PolicyError, ScriptedModel

LONE = plan((0, "Answer.", []))
WORKERS: dict[str, Any] = {"a": ScriptedModel(lambda request: LONE if "plan" in str(request.messages) else "Hi.")}


def fake(limit: int | None = None) -> FakeListChatModel:
    return FakeListChatModel(responses=["Hi."], profile={"max_input_tokens": limit} if limit else {})


def solve(question: str, **options: Any) -> AIMessage:
    node = create_conductor(ChatConductor({"a": ScriptedModel("Hi.")}, planner=ScriptedModel(LONE)), **options)
    graph = StateGraph(MessagesState).add_node("solve", node).add_edge(START, "solve").compile()
    state: Any = {"messages": question}
    message = graph.invoke(state)["messages"][-1]
    assert isinstance(message, AIMessage)
    return message


# --------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    "create", [ChatConductor, RunnableConductor, create_conductor], ids=lambda create: create.__name__
)
def test_a_dict_of_workers_may_be_the_first_argument(create: Callable[[Any], Any]) -> None:
    assert create({"first": ScriptedModel("Hi."), "second": fake()}) is not None


def test_a_runnable_over_a_dict_of_workers_answers() -> None:
    workers = {"a": ScriptedModel([LONE, "Hi."])}
    assert RunnableConductor(workers).invoke("hi").text == "Hi."


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        (("gpt-4o",), {}, r"workers is 'gpt-4o'; write a dict, such as ChatConductor\({'worker': 'openai:gpt-4o'}\)"),
        (("openai:gpt-4o",), {}, r"such as ChatConductor\({'worker': 'openai:gpt-4o'}\)"),
        ((), {"api_key": "sk-not-real"}, r"no setting 'api_key', .* ChatOpenAI\(model=..., api_key=...\)"),
        ((), {"base_url": "http://x/v1"}, r"no setting 'base_url', .* ChatOpenAI\(model=..., base_url=...\)"),
        (([fake()],), {}, "workers is a list; write {'name': model, ...}"),
    ],
    ids=str,
)
def test_arguments_of_other_chat_models_are_refused_with_the_right_ones(
    arguments: tuple[Any, ...], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        ChatConductor(*arguments, **settings)
    assert "sk-not-real" not in str(caught.value)


def test_the_access_mode_can_be_set() -> None:
    assert ChatConductor(WORKERS).conductor.config.access == "binary"
    assert ChatConductor(WORKERS, access="positional").conductor.config.access == "positional"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"access": "any"}, "access is 'any': write 'binary' or 'positional'"),
        ({"limits": "wrong"}, "limits is 'wrong': write a table or a dict of settings"),
        ({"limits": {"calls": "many"}}, "limits.calls is 'many': write"),
        ({"rounds": 0}, "rounds is 0: write a number greater than or equal to 1"),
        ({"round": 2}, "round is 2: there is no such setting; did you mean 'rounds'"),
    ],
)
def test_a_wrong_setting_says_what_to_write(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        ChatConductor(WORKERS, **settings)


def test_neither_the_text_of_a_conductor_nor_an_error_shows_a_password_in_an_address() -> None:
    password = "pw-0123456789"
    inside: Any = ChatOpenAI(model="m", base_url=f"http://user:{password}@127.0.0.1:9/v1", api_key="none")
    assert password in repr(inside)
    chat = ChatConductor({"a": inside, "b": {"model": inside, "description": "Adds."}}, planner=inside)
    workers = "workers={'a': 'ChatOpenAI', 'b': {'model': 'ChatOpenAI', 'description': 'Adds.'}}, planner='ChatOpenAI'"
    assert workers in repr(chat)
    with pytest.raises(ConfigError, match=r"^limits is ChatOpenAI\(.*\[secret\].*: write") as caught:
        ChatConductor({"a": inside}, limits=inside)
    for text in (repr(chat), str(chat), str(caught.value)):
        assert password not in text


def test_a_profile_with_another_planner_keeps_the_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RL_CONDUCTOR_POOL", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    usual, mini = (ChatConductor(model=model, instructions="Check twice.").conductor for model in (None, "mini"))
    assert usual.planner.model.name != mini.planner.model.name
    assert usual.planner.instructions == mini.planner.instructions == "Check twice."


def test_a_core_conductor_keeps_its_settings_unless_others_are_set() -> None:
    workers = {"a": ScriptedModel("A.")}
    core = Conductor(ScriptedModel(LONE), workers, keep_prompts=False, retries=0, access="positional", name="shop")
    kept = ChatConductor(conductor=core).conductor.config
    assert (kept.keep_prompts, kept.retries, kept.access, kept.name) == (False, 0, "positional", "shop")
    changed = ChatConductor(conductor=core, max_retries=1, access="binary", model="mini").conductor.config
    assert (changed.keep_prompts, changed.retries, changed.access, changed.name) == (False, 1, "binary", "shop-mini")


# --------------------------------------------------------------------------------- later changes


def test_workers_assigned_later_do_the_work() -> None:
    chat = ChatConductor({"a": ScriptedModel("Old.")}, planner=ScriptedModel(LONE))
    assert chat.invoke("hi").text == "Old."
    assert (chat.profile or {})["image_inputs"] is True
    chat.workers = {"b": ScriptedModel("New.", capabilities=Capabilities())}
    assert chat.invoke("hi").text == "New."
    assert (chat.profile or {})["image_inputs"] is False
    assert list(chat.conductor.pool) == ["b"]


def test_policy_and_limits_assigned_later_hold() -> None:
    chat = ChatConductor({"a": ScriptedModel("A."), "b": ScriptedModel("B.")}, planner=ScriptedModel(LONE))
    chat.policy = Policy(single="b")
    assert chat.invoke("hi").text == "B."
    chat.rounds = 3
    assert chat.conductor.limits.rounds == 3


def test_a_wrong_assignment_is_an_error_and_changes_nothing() -> None:
    chat = ChatConductor({"a": ScriptedModel("Old.")}, planner=ScriptedModel(LONE))
    wrong: Any = {"b": 7}
    with pytest.raises(ConfigError, match="worker 'b': 7 is not a model"):
        chat.workers = wrong
    with pytest.raises(PolicyError):
        chat.policy = Policy(final="nobody")
    assert chat.invoke("hi").text == "Old."


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("rounds", "x"), ("rounds", 0), ("max_retries", "often"), ("temperature", "hot"), ("max_tokens", -1)],
        *[("stop", 7), ("limits", 3)],
    ],
)
def test_an_assigned_value_of_the_wrong_type_is_named(name: str, value: Any) -> None:
    chat = ChatConductor(WORKERS)
    before = getattr(chat, name)
    with pytest.raises(ConfigError, match=rf"^{name} is {value!r}: "):
        setattr(chat, name, value)
    assert getattr(chat, name) == before


def test_the_name_of_a_profile_is_called_model_as_a_profile_is_something_else_in_langchain() -> None:
    chat: Any = ChatConductor(WORKERS)
    with pytest.raises(ConfigError, match=r"profile is 'mini', but .* write model='mini'"):
        chat.profile = "mini"
    with pytest.raises(ConfigError, match="write model='mini'"):
        ChatConductor(WORKERS, profile="mini")
    chat.model = "mini"
    assert chat.conductor.limits.steps == 2


# ------------------------------------------------------------------------------- instructions


@pytest.mark.parametrize(
    ("planner", "expected_error"),
    [
        (7, "the planner: 7 is not a model; write a chat model, "),
        ("gpt-5", "the planner: no model 'gpt-5': write 'provider:model'"),
        (
            {"model": "ollama:x", "price": {"input": 1, "output": 1}},
            r"the planner is a dict; .* price ChatModel\(model, ",
        ),
    ],
    ids=str,
)
def test_an_invalid_planner_is_refused_as_the_planner(planner: Any, expected_error: str) -> None:
    with pytest.raises(ConfigError, match=expected_error):
        ChatConductor({"a": ScriptedModel("Hi.")}, planner=planner)


def test_instructions_are_in_the_planners_prompt() -> None:
    planner = ScriptedModel([LONE, LONE, LONE])
    chat = ChatConductor({"a": ScriptedModel("Hi.")}, planner=planner, instructions="Check every number.")
    chat.invoke("hi")
    assert "Check every number." in str(planner.requests[-1].messages)
    chat.instructions = "Be quick."
    chat.invoke("hi")
    assert "Be quick." in str(planner.requests[-1].messages)
    node: Any = create_conductor(chat, instructions="Use one step.")
    node.invoke({"messages": "hi"})
    assert "Use one step." in str(planner.requests[-1].messages)


def test_a_copy_with_other_workers_has_a_conductor_of_its_own() -> None:
    chat = ChatConductor({"a": ScriptedModel("Old.")}, planner=ScriptedModel(LONE))
    copy = chat.model_copy(update={"workers": {"b": ScriptedModel("New.")}})
    assert (copy.invoke("hi").text, chat.invoke("hi").text) == ("New.", "Old.")


# ----------------------------------------------------------------------------- profile and names


def test_the_profile_has_the_smallest_context_limit_of_planner_and_workers() -> None:
    workers = {"small": fake(1000), "large": fake(9000), "unknown": fake()}
    chat = ChatConductor(workers, planner=fake(5000))
    assert chat.profile is not None
    assert chat.profile["max_input_tokens"] == 1000
    outer = ChatConductor({"inner": chat, "tuned": ChatConductor(workers, temperature=0.5)}, planner=fake())
    assert outer.profile is not None
    assert outer.profile["max_input_tokens"] == 1000
    assert "max_input_tokens" not in (ChatConductor({"a": fake()}).profile or {})


def test_summarization_middleware_works_with_a_fraction_of_the_context() -> None:
    chat = ChatConductor({"a": fake(1000)}, planner=ScriptedModel(LONE))
    middleware: Any = SummarizationMiddleware(model=chat, trigger=("fraction", 0.8), keep=("fraction", 0.5))
    agent: Any = create_agent(chat, middleware=[middleware])
    assert agent.invoke({"messages": "hi"})["messages"][-1].text == "Hi."


def test_the_name_of_a_node_is_on_its_message() -> None:
    assert solve("hi", name="solver").name == "solver"
    assert solve("hi").name is None
