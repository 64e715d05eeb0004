"""JSON that is requested from LlamaIndex's LLMs, in the way of each vendor."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from llama_index.core.base.llms.types import CompletionResponse, CompletionResponseGen
from llama_index.core.llms import CustomLLM, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.prompts import PromptTemplate
from pydantic import BaseModel, Field, PrivateAttr

from llama_index.llms.conductor import Conductor, LLMModel
from llamaindex.scripts import plan, planner
from rl_conductor import Request
from rl_conductor.errors import BadRequestError
from rl_conductor.types import JsonFormat


class City(BaseModel):
    """A city."""

    name: str


class Anthropic(CustomLLM):
    """Stands in for LlamaIndex's model of Anthropic, whose package needs an older SDK; returns JSON."""

    model: str = "claude-with-schemas"
    additional_kwargs: dict[str, Any] = Field(default_factory=dict)

    _calls: list[dict[str, Any]] = PrivateAttr(default_factory=list)

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The keywords of all calls."""
        return self._calls

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name=self.model)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self._calls.append(kwargs)
        return CompletionResponse(text='{"name": "Ulm"}')

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        raise AssertionError("no test streams")


@pytest.fixture(autouse=True)
def _package_of_anthropic(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {
        "Anthropic": Anthropic,
        "is_anthropic_structured_output_supported": lambda model: model == "claude-with-schemas",
    }
    monkeypatch.setitem(sys.modules, "llama_index.llms.anthropic.base", SimpleNamespace(**names))


def test_a_claude_model_gets_the_schema_of_the_output() -> None:
    claude = Anthropic(additional_kwargs={"extra_body": {"output_config": {"effort": "low"}, "user": "u1"}})
    llm = Conductor({"claude": claude}, planner=planner(plan((0, "Name it.", []))))
    assert llm.structured_predict(City, PromptTemplate("Which city?")) == City(name="Ulm")
    (call,) = claude.calls
    body = call["extra_body"]
    assert (body["user"], body["output_config"]["effort"]) == ("u1", "low")
    json_format = body["output_config"]["format"]
    assert json_format["type"] == "json_schema"
    assert json_format["schema"]["properties"]["name"]["type"] == "string"
    assert json_format["schema"]["additionalProperties"] is False


async def test_a_claude_model_without_a_schema_says_that_it_needs_one() -> None:
    request = Request.user("Which city?").model_copy(update={"response_format": JsonFormat()})
    with pytest.raises(BadRequestError, match="writes JSON only with a schema"):
        await LLMModel(Anthropic()).complete(request)


def test_older_claude_models_and_packages_have_no_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not LLMModel(Anthropic(model="claude-2")).capabilities.json_schema
    monkeypatch.setitem(sys.modules, "llama_index.llms.anthropic.base", SimpleNamespace(Anthropic=Anthropic))
    assert not LLMModel(Anthropic()).capabilities.json_schema
