"""Serialisation as dictionary, JSON and pickle: names are restored, objects are passed again, secrets are left out."""

from __future__ import annotations

import json
import pickle
from decimal import Decimal
from typing import Any

import pytest
from llama_index.core.llms import LLM

from llama_index.llms.conductor import Conductor
from llamaindex.scripts import EchoLLM, conductor, planner
from rl_conductor import ConfigError, Flow, Limits, Policy, ScriptedModel
from rl_conductor.guardrails.presidio import PresidioGuardrail

SECRET = "sk-very-secret"
WORKERS: dict[str, Any] = {
    "strong": "openai:gpt-5",
    "inside": {"model": "ollama:qwen3", "tags": ["internal"], "strengths": "private data", "timeout": 20},
}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)


def conductor_by_names() -> Conductor:
    policy = Policy(forbid=(Flow(reader="strong", source="inside"),), final="inside")
    limits = Limits(usd=Decimal("0.5"), steps=3)
    return Conductor(WORKERS, planner="openai:gpt-5-mini", policy=policy, limits=limits, temperature=0.3)


@pytest.mark.parametrize("way", ["dict", "json", "pickle"])
def test_workers_given_by_name_are_restored(way: str) -> None:
    llm = conductor_by_names()
    match way:
        case "dict":
            again = Conductor.from_dict(llm.to_dict())
        case "json":
            again = Conductor.from_json(llm.to_json())
        case _:
            again = pickle.loads(pickle.dumps(llm))
    assert again.to_dict() == llm.to_dict()
    assert (again.policy, again.limits, again.temperature) == (llm.policy, llm.limits, 0.3)
    assert again.metadata == llm.metadata


def test_an_entry_is_serialised_as_in_a_pool_file() -> None:
    assert conductor_by_names().to_dict()["workers"]["inside"] == {
        "model": "ollama:qwen3",
        "tags": ["internal"],
        "strengths": "private data",
        "timeout": 20.0,
    }


def test_no_secret_is_serialised() -> None:
    llm = conductor(EchoLLM(api_key=SECRET))
    for text in (llm.to_json(), str(llm.to_dict()), llm.model_dump_json(), str(llm.to_payload())):
        assert SECRET not in text
    assert SECRET.encode() not in pickle.dumps(conductor_by_names())


def test_neither_the_text_of_a_conductor_nor_an_error_shows_the_keys_of_its_llms() -> None:
    keyed: Any = EchoLLM(api_key=SECRET)
    llm = Conductor({"a": keyed}, planner=keyed)
    assert SECRET in repr(keyed)
    assert "workers={'a': {'object': 'EchoLLM'}}, planner={'object': 'EchoLLM'}" in repr(llm)
    with pytest.raises(ConfigError, match=r"^limits is EchoLLM\(.*\[secret\].*: write") as caught:
        llm.limits = keyed
    for text in (repr(llm), str(llm), str(caught.value)):
        assert SECRET not in text


def test_objects_must_be_passed_again() -> None:
    data = json.loads(conductor(EchoLLM()).to_json())
    assert data["workers"]["drafter"] == {"object": "EchoLLM"}
    with pytest.raises(ConfigError, match="'drafter' was a EchoLLM, which can't be serialised") as caught:
        Conductor.from_dict(data)
    assert "\n" not in str(caught.value)
    workers = {"drafter": EchoLLM(), "writer": ScriptedModel("Again.")}
    assert Conductor.from_dict(data, workers=workers, planner=planner()).complete("Why?").text == "Again."


def test_llms_are_pickled() -> None:
    again = pickle.loads(pickle.dumps(Conductor([EchoLLM(window=1_234)], policy=Policy(single="echo"))))
    assert again.metadata.context_window == 1_234
    assert again.complete("Why?").text == "An echo."


def test_unpicklable_workers_are_an_error() -> None:
    with pytest.raises((AttributeError, pickle.PicklingError)):  # Python versions differ
        pickle.dumps(Conductor([ScriptedModel("Hi.")]))


def test_a_planner_object_must_be_passed_again() -> None:
    data = Conductor({"a": "openai:gpt-5"}, planner=EchoLLM()).to_dict()
    with pytest.raises(ConfigError, match="the planner was a EchoLLM"):
        Conductor.from_dict(data)


def test_models_are_discovered_again() -> None:
    again = pickle.loads(pickle.dumps(Conductor(profile="mini")))
    assert again.profile == "mini"
    assert "gpt-6-sol" in again._core.pool


def test_it_is_accepted_as_the_llm_of_settings() -> None:
    from llama_index.core import Settings  # noqa: PLC0415

    llm: LLM = conductor()
    Settings.llm = llm
    assert Settings.llm is llm
    Settings._llm = None


def test_guardrails_are_passed_again_and_pickled() -> None:
    made = Conductor({"a": "openai:gpt-5"}, guardrails=[PresidioGuardrail()])
    data = made.to_dict()
    assert data["guardrails"] == [{"object": "pii"}]
    with pytest.raises(ConfigError, match=r"a guardrail was a pii, .*from_dict\(data, guardrails=\.\.\.\)"):
        Conductor.from_json(made.to_json())
    again = Conductor.from_dict(data, guardrails=[PresidioGuardrail()])
    assert [guardrail.name for guardrail in again.conductor.config.guardrails] == ["pii"]
    pickled = pickle.loads(pickle.dumps(made))
    assert [guardrail.name for guardrail in pickled.conductor.config.guardrails] == ["pii"]


@pytest.mark.parametrize(
    "options", [{"headers": {"Authorization": "Bearer abc"}}, {"base_url": "http://user:abc@localhost/v1"}], ids=str
)
def test_secrets_among_the_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"not allowed in a file; .* headers_env = "):
        Conductor({"a": {"model": "openai:m", "options": options}})
