"""Structured output: by a tool call if a worker that may answer supports tools, else by JSON schema."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any

from llama_index.core.program.utils import FlexibleModel
from llama_index.core.types import Model as Output
from pydantic import BaseModel
from typing_extensions import override

from .settings import ConductorSettings

Keywords = dict[str, Any] | None


class StructuredOutputLLM(ConductorSettings):
    """Overrides the four `structured_predict` methods of LlamaIndex."""

    def _with_response_format(self, output_cls: type[BaseModel], keywords: Keywords) -> dict[str, Any]:
        capabilities = [worker.model.capabilities for worker in self._final_workers()]
        has_tools = any(capability.tools for capability in capabilities)
        schema_only = not has_tools and any(capability.json_schema for capability in capabilities)
        return {**(keywords or {}), **({"response_format": output_cls} if schema_only else {})}

    def _for_streaming(self, output_cls: type[BaseModel], keywords: Keywords) -> dict[str, Any]:
        """Requires the tool call: LlamaIndex does not when streaming, and makes an object without values of a text."""
        needs_call = {"streams_structured_output": True} if self.metadata.is_function_calling_model else {}
        return {**self._with_response_format(output_cls, keywords), **needs_call}

    @override
    def structured_predict(
        self, output_cls: type[Output], prompt: Any, llm_kwargs: Keywords = None, **prompt_args: Any
    ) -> Output:
        keywords = self._with_response_format(output_cls, llm_kwargs)
        output: Output = super().structured_predict(output_cls, prompt, keywords, **prompt_args)
        return output

    @override
    async def astructured_predict(
        self, output_cls: type[Output], prompt: Any, llm_kwargs: Keywords = None, **prompt_args: Any
    ) -> Output:
        keywords = self._with_response_format(output_cls, llm_kwargs)
        output: Output = await super().astructured_predict(output_cls, prompt, keywords, **prompt_args)
        return output

    @override
    def stream_structured_predict(
        self, output_cls: type[Output], prompt: Any, llm_kwargs: Keywords = None, **prompt_args: Any
    ) -> Generator[Output | FlexibleModel, None, None]:
        keywords = self._for_streaming(output_cls, llm_kwargs)
        yield from super().stream_structured_predict(output_cls, prompt, keywords, **prompt_args)

    @override
    async def astream_structured_predict(
        self, output_cls: type[Output], prompt: Any, llm_kwargs: Keywords = None, **prompt_args: Any
    ) -> AsyncGenerator[Output | FlexibleModel, None]:
        keywords = self._for_streaming(output_cls, llm_kwargs)
        outputs: AsyncGenerator[Output | FlexibleModel, None] = await super().astream_structured_predict(
            output_cls, prompt, keywords, **prompt_args
        )
        return outputs
