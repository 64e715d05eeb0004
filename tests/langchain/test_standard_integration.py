"""`langchain-tests`' own integration tests of chat models, over real servers that speak two vendors' protocols.

The planner and the worker that drafts speak OpenAI's; the worker that answers speaks Anthropic's, which has pictures
and documents in the results of tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_tests.integration_tests import ChatModelIntegrationTests

from core.models.wire.base import SECRET
from langchain_conductor import ChatConductor
from rl_conductor import Model, model
from rl_conductor._internal.sync import run_sync

from .greeting import greeted
from .vendor import AnthropicVendor, Vendor

PICTURE, DOCUMENT = b"\x89PNG\r\n\x1a\n", b"%PDF-1.4"


@pytest.fixture(scope="module")
def vendor() -> Iterator[Vendor]:
    with Vendor.running() as service:
        yield service


@pytest.fixture(scope="module")
def other_vendor() -> Iterator[AnthropicVendor]:
    with AnthropicVendor.running() as service:
        yield service


@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")  # by a test that needs recorded calls
class TestChatConductor(ChatModelIntegrationTests):
    models: tuple[Model, ...]

    @pytest.fixture(autouse=True)
    async def _at_the_vendors(
        self, vendor: Vendor, other_vendor: AnthropicVendor, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[None]:
        def downloaded(url: str, **_: Any) -> httpx.Response:
            return httpx.Response(200, content=DOCUMENT if url.endswith(".pdf") else PICTURE)

        monkeypatch.setattr(httpx, "get", downloaded)  # with which the tests fetch their picture and document
        options = {"base_url": f"{vendor.url}/v1", "api_key": "none", "dialect": "openai"}
        planner, drafter = (model(f"openai:{name}", **options) for name in ("planner", "drafter"))
        writer = model("anthropic:writer", base_url=other_vendor.url, api_key=SECRET)
        type(self).models = (planner, drafter, writer)
        yield
        for one in self.models:
            await one.aclose()
            await asyncio.to_thread(run_sync, one.aclose())

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatConductor

    @property
    def chat_model_params(self) -> dict[str, Any]:
        planner, drafter, writer = self.models
        return {"workers": {"drafter": drafter, "writer": writer}, "planner": planner}

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
