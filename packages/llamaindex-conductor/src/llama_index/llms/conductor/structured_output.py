"""Structured output: by a tool call if a worker that may answer supports tools, else by JSON schema."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ChatResponseAsyncGen
from llama_index.core.output_parsers.utils import extract_json_str
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
        output: Any = None
        if self._all_constrain_json():
            messages = self._extend_messages(prompt.format_messages(**prompt_args))
            response = ChatResponse(message=ChatMessage())
            for response in self.stream_chat(messages, **keywords):
                output = process_streaming_content_incremental(response, output_cls, output)
                yield output
            _require_complete_json(response)
        else:
            for output in super()._structured_stream_call(output_cls, prompt, keywords, **prompt_args):
                yield output
        _require_complete(output, output_cls)

    @override
    async def _structured_astream_call(
        self, output_cls: type[Output], prompt: Any, llm_kwargs: Keywords = None, **prompt_args: Any
    ) -> AsyncGenerator[Any, None]:
        keywords = self._for_streaming(output_cls, llm_kwargs)
        if self._all_constrain_json():
            messages = self._extend_messages(prompt.format_messages(**prompt_args))
            outputs = _partial_outputs(output_cls, await self.astream_chat(messages, **keywords))
        else:
            outputs = await super()._structured_astream_call(output_cls, prompt, keywords, **prompt_args)
        return _complete_outputs(output_cls, outputs)

    def _all_constrain_json(self) -> bool:
        """Whether every worker that may answer takes a JSON schema, so that the answer can be read as it is written."""
        return all(worker.model.capabilities.json_schema for worker in self._final_workers())

    def _for_streaming(self, output_cls: type[BaseModel], keywords: Keywords) -> dict[str, Any]:
        """Requires the JSON or the tool call: LlamaIndex would make an object without values of a text."""
        if self._all_constrain_json():
            return {**(keywords or {}), "response_format": output_cls}
        needs_call = {"streams_structured_output": True} if self.metadata.is_function_calling_model else {}
        return {**self._with_response_format(output_cls, keywords), **needs_call}


def _require_complete(output: Any, output_cls: type[BaseModel]) -> None:
    """Checks the last output of a stream; those before may lack values.

    Raises:
        ValueError: it lacks some, because the reply was truncated or invalid.
    """
    outputs = output if isinstance(output, list) else [output]
    if not all(isinstance(each, output_cls) for each in outputs):
        raise ValueError(f"the streamed output is no {output_cls.__name__}, but {output!r:.200}")


def _require_complete_json(response: ChatResponse) -> None:
    """Checks a reply from which outputs were made; LlamaIndex closes the brackets and texts of truncated JSON.

    Raises:
        ValueError: it is truncated.
    """
    json.loads(extract_json_str(response.message.content or ""))


async def _complete_outputs(output_cls: type[Output], outputs: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    output = None
    async with aclosing(outputs):
        async for output in outputs:
            yield output
    _require_complete(output, output_cls)


async def _partial_outputs(output_cls: type[Output], responses: ChatResponseAsyncGen) -> AsyncGenerator[Any, None]:
    output, response = None, ChatResponse(message=ChatMessage())
    async for response in responses:
        output = process_streaming_content_incremental(response, output_cls, output)
        yield output
    _require_complete_json(response)
