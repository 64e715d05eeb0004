"""`langchain-tests`' own unit tests of chat models, over core models, `ChatOpenAI` and `ChatAnthropic`."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.unit_tests import ChatModelUnitTests
from syrupy.assertion import SnapshotAssertion

from langchain_conductor import ChatConductor

NOT_LISTED = (
    "langchain_core.load revives no class that is not on its own list; test_chat.py names the class and does the same"
)


class TestCoreWorkers(ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatConductor

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"workers": {"small": "ollama:llama3.2:1b", "large": "ollama:qwen3:8b"}}

    @property
    def standard_chat_model_params(self) -> dict[str, Any]:
        """Without a key: those are the workers'."""
        params = super().standard_chat_model_params
        del params["api_key"]
        return params

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        return {"OPENAI_API_KEY": "sk-not-a-key"}, {"model": "mini"}, {"model": "mini"}

    @pytest.mark.xfail(reason=NOT_LISTED, strict=True)
    def test_serdes(self, model: BaseChatModel, snapshot: SnapshotAssertion) -> None:
        super().test_serdes(model, snapshot)


class TestOpenAIWorkers(TestCoreWorkers):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"workers": {name: ChatOpenAI(model=name, api_key="none") for name in ("gpt-4o", "gpt-4o-mini")}}


class TestAnthropicWorkers(TestCoreWorkers):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        chat = ChatAnthropic(model="claude-haiku-4-5", api_key="none")
        return {"workers": {"first": chat, "second": chat.model_copy()}}
