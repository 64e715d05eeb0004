"""Structured output: by a tool call if a worker that may answer supports tools, else by JSON schema."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any

from llama_index.core.base.llms.types import ChatResponseAsyncGen
from llama_index.core.program.streaming_utils import process_streaming_content_incremental
from llama_index.core.types import Model as Output
from pydantic import BaseModel
from typing_extensions import override

from .settings import ConductorSettings

Keywords = dict[str, Any] | None


class StructuredOutputLLM(ConductorSettings):
    """Overrides the methods that LlamaIndex's `structured_predict` and its variants call."""

    def _with_response_format(self, output_cls: type[BaseModel], keywords: Keywords) -> dict[str, Any]:
        capabilities = [worker.model.capabilities for worker in self._final_workers()]
        has_tools = any(capability.tools for capability in capabilities)
        schema_only = not has_tools and any(capability.json_schema for capability in capabilities)
        return {**(keywords or {}), **({"response_format": output_cls} if schema_only else {})}

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
    def _structured_stream_call(
        self, output_cls: type[Output], prompt: Any, llm_kwargs: Keywords = None, **prompt_args: Any
    ) -> Generator[Any, None, None]:
        keywords = self._for_streaming(output_cls, llm_kwargs)
        if not self._all_constrain_json():
            yield from super()._structured_stream_call(output_cls, prompt, keywords, **prompt_args)
            return
        messages = self._extend_messages(prompt.format_messages(**prompt_args))
        output = None
        for response in self.stream_chat(messages, **keywords):
            output = process_streaming_content_incremental(response, output_cls, output)
            yield output

    @override
    async def _structured_astream_call(
        self, output_cls: type[Output], prompt: Any, llm_kwargs: Keywords = None, **prompt_args: Any
    ) -> AsyncGenerator[Any, None]:
        keywords = self._for_streaming(output_cls, llm_kwargs)
        if not self._all_constrain_json():
            outputs: AsyncGenerator[Any, None] = await super()._structured_astream_call(
                output_cls, prompt, keywords, **prompt_args
            )
            return outputs
        messages = self._extend_messages(prompt.format_messages(**prompt_args))
        return _partial_outputs(output_cls, await self.astream_chat(messages, **keywords))

    def _all_constrain_json(self) -> bool:
        """Whether every worker that may answer takes a JSON schema, so that the answer can be read as it is written."""
        return all(worker.model.capabilities.json_schema for worker in self._final_workers())

    def _for_streaming(self, output_cls: type[BaseModel], keywords: Keywords) -> dict[str, Any]:
        """Requires the JSON or the tool call: LlamaIndex would make an object without values of a text."""
        if self._all_constrain_json():
            return {**(keywords or {}), "response_format": output_cls}
        needs_call = {"streams_structured_output": True} if self.metadata.is_function_calling_model else {}
        return {**self._with_response_format(output_cls, keywords), **needs_call}


async def _partial_outputs(output_cls: type[Output], responses: ChatResponseAsyncGen) -> AsyncGenerator[Any, None]:
    output = None
    async for response in responses:
        output = process_streaming_content_incremental(response, output_cls, output)
        yield output
