"""`langchain-tests`' own integration tests of chat models, over tiny real models in this process, one of which plans.

What these models can't do, such as see, is left to `test_standard_integration.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_tests.integration_tests import ChatModelIntegrationTests

from langchain_conductor import ChatConductor
from rl_conductor import Limits, Planner, Policy, Sampling, Worker, WorkerPool
from rl_conductor._internal.sync import run_sync

from .greeting import greeted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class PlanSources(BaseCallbackHandler):
    """Records where plans come from: if a plan can't be used, a worker answers alone, and no test would notice."""

    raise_error = True

    def __init__(self) -> None:
        self.sources: list[str] = []

    def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        for (generation,) in response.generations:
            assert isinstance(generation, ChatGeneration)
            metadata = generation.message.response_metadata["conductor"]
            self.sources.append(metadata["rounds"][0]["plan"]["source"])


@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")  # by a test that needs recorded calls
class TestChatConductor(ChatModelIntegrationTests):
    pool: WorkerPool
    plans = PlanSources()

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _loaded_once(cls) -> Iterator[None]:
        writer = Worker.of("writer", "embedded:smollm2-135m", sampling=Sampling(max_tokens=24))
        cls.pool = WorkerPool([Worker.of("coder", "embedded:qwen2.5-coder-0.5b"), writer])
        yield
        run_sync(cls.pool.aclose())
        # A model this small sometimes writes on until its tokens end, so one plan in five may be unusable.
        assert cls.plans.sources.count("fallback") <= 1 + len(cls.plans.sources) / 5
        assert set(cls.plans.sources) <= {"planner", "continuation", "fallback"}

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatConductor

    @property
    def chat_model_params(self) -> dict[str, Any]:
        brief = Sampling(max_tokens=96, temperature=0.3, seed=1)
        return {
            "workers": self.pool,
            "planner": Planner(model=self.pool["writer"].model, form="rows", examples=1, sampling=brief),
            "policy": Policy(final="coder"),
            "limits": Limits(steps=2),
            "temperature": 0,
            "max_tokens": 96,
            "callbacks": [self.plans],
        }

    @property
    def model_override_value(self) -> str:
        return "ultra"

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def supported_usage_metadata_details(self) -> dict[Any, Any]:
        return {"invoke": ["cache_read_input"], "stream": ["cache_read_input"]}

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        return greeted(ChatConductor(**self.chat_model_params), stream=stream)
