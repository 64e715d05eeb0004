"""`langchain-tests`' own integration tests of chat models, over real servers that speak two vendors' protocols.

They run over three kinds of workers: core models, `ChatOpenAI` and `ChatAnthropic`. Among the core models, the planner
and the worker that drafts speak OpenAI's protocol; the worker that answers speaks Anthropic's, which has pictures and
documents in the results of tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests, chat_models

from core.models.wire.base import SECRET
from langchain_conductor import ChatConductor
from langchain_vendor import AnthropicVendor, Vendor
from rl_conductor import model
from rl_conductor._internal.sync import run_sync

from .greeting import greeted

PICTURE, DOCUMENT = b"\x89PNG\r\n\x1a\n", b"%PDF-1.4"


@pytest.fixture(scope="module")
def vendor() -> Iterator[Vendor]:
    with Vendor.running() as service:
        yield service


@pytest.fixture(scope="module")
def other_vendor() -> Iterator[AnthropicVendor]:
    with AnthropicVendor.running() as service:
        yield service


class OwnCalls(chat_models._TestCallbackHandler):
    """Ignores the calls of chat models that are workers, which handlers get as well, inside the conductor's run."""

    def on_chat_model_start(self, *arguments: Any, **kwargs: Any) -> None:
        if kwargs["metadata"]["ls_provider"] == "conductor":
            super().on_chat_model_start(*arguments, **kwargs)


@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")  # by a test that needs recorded calls
class VendorTests(ChatModelIntegrationTests):
    workers: dict[str, Any]
    planner: Any

    @pytest.fixture(autouse=True)
    def _local_downloads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def downloaded(url: str, **_: Any) -> httpx.Response:
            return httpx.Response(200, content=DOCUMENT if url.endswith(".pdf") else PICTURE)

        monkeypatch.setattr(httpx, "get", downloaded)  # with which the tests fetch their picture and document
        monkeypatch.setattr(chat_models, "_TestCallbackHandler", OwnCalls)

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatConductor

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"workers": self.workers, "planner": self.planner}

    @property
    def model_override_value(self) -> str:
        return "mini"

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_image_inputs(self) -> bool:
        return True

    @property
    def supports_image_urls(self) -> bool:
        return True

    @property
    def supports_pdf_inputs(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def supports_image_tool_message(self) -> bool:
        return True

    @property
    def supports_pdf_tool_message(self) -> bool:
        return True

    @property
    def supported_usage_metadata_details(self) -> dict[Any, Any]:
        counted = ["reasoning_output", "cache_read_input"]
        return {"invoke": counted, "stream": counted}

    def invoke_with_reasoning_output(self, *, stream: bool = False) -> AIMessage:
        return greeted(ChatConductor(**self.chat_model_params), stream=stream)

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        return greeted(ChatConductor(**self.chat_model_params), stream=stream)


class TestCoreWorkers(VendorTests):
    @pytest.fixture(autouse=True)
    async def _models(self, vendor: Vendor, other_vendor: AnthropicVendor) -> AsyncIterator[None]:
        options = {"base_url": f"{vendor.url}/v1", "api_key": "none", "dialect": "openai"}
        planner, drafter = (model(f"openai:{name}", **options) for name in ("planner", "drafter"))
        writer = model("anthropic:writer", base_url=other_vendor.url, api_key=SECRET)
        type(self).planner, type(self).workers = planner, {"drafter": drafter, "writer": writer}
        yield
        for used_model in (planner, drafter, writer):
            await used_model.aclose()
            await asyncio.to_thread(run_sync, used_model.aclose())


class TestOpenAIWorkers(VendorTests):
    @pytest.fixture(autouse=True)
    def _models(self, vendor: Vendor) -> None:
        options: dict[str, Any] = {"base_url": f"{vendor.url}/v1", "api_key": SECRET, "max_retries": 0}
        names = ("gpt-4o-mini", "gpt-4o", "gpt-4o-mini")
        planner, drafter, writer = (ChatOpenAI(model=name, **options) for name in names)
        type(self).planner, type(self).workers = planner, {"drafter": drafter, "writer": writer}


class TestAnthropicWorkers(VendorTests):
    @pytest.fixture(autouse=True)
    def _models(self, other_vendor: AnthropicVendor) -> None:
        options: dict[str, Any] = {"base_url": other_vendor.url, "api_key": SECRET, "max_retries": 0}
        names = ("claude-haiku-4-5", "claude-haiku-4-5", "claude-haiku-4-5")
        planner, drafter, writer = (ChatAnthropic(model_name=name, **options) for name in names)
        type(self).planner, type(self).workers = planner, {"drafter": drafter, "writer": writer}
