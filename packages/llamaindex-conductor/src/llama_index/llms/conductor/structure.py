"""Objects as answers: by a tool call where a worker that may answer can make one, else by their JSON schema."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Generator
from typing import Any

from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.program.utils import FlexibleModel
from llama_index.core.types import Model as Output
from pydantic import BaseModel
from typing_extensions import override

from rl_conductor import Worker

Keywords = dict[str, Any] | None


class Structuring(FunctionCallingLLM):
    """LlamaIndex's four ways to ask for an object."""

    @abstractmethod
    def _final_workers(self) -> list[Worker]:
        """Who may give the answer."""

    def _held_to(self, output_cls: type[BaseModel], keywords: Keywords) -> dict[str, Any]:
        can = [worker.model.capabilities for worker in self._final_workers()]
        schema_only = any(one.json_schema for one in can) and not any(one.tools for one in can)
        return {**(keywords or {}), **({"response_format": output_cls} if schema_only else {})}

    @override
    def structured_predict(
        self, output_cls: type[Output], prompt: Any, llm_kwargs: Keywords = None, **prompt_args: Any
    ) -> Output:
        """A filled-in `output_cls`."""
        held = self._held_to(output_cls, llm_kwargs)
        found: Output = super().structured_predict(output_cls, prompt, held, **prompt_args)
        return found

    @override
    async def astructured_predict(
        self, output_cls: type[Output], prompt: Any, llm_kwargs: Keywords = None, **prompt_args: Any
    ) -> Output:
        """A filled-in `output_cls`."""
        held = self._held_to(output_cls, llm_kwargs)
        found: Output = await super().astructured_predict(output_cls, prompt, held, **prompt_args)
        return found

    @override
    def stream_structured_predict(
        self, output_cls: type[Output], prompt: Any, llm_kwargs: Keywords = None, **prompt_args: Any
    ) -> Generator[Output | FlexibleModel, None, None]:
        """An `output_cls` as it is filled in."""
        held = self._held_to(output_cls, llm_kwargs)
        yield from super().stream_structured_predict(output_cls, prompt, held, **prompt_args)

    @override
    async def astream_structured_predict(
        self, output_cls: type[Output], prompt: Any, llm_kwargs: Keywords = None, **prompt_args: Any
    ) -> AsyncGenerator[Output | FlexibleModel, None]:
        """An `output_cls` as it is filled in."""
        held = self._held_to(output_cls, llm_kwargs)
        found: AsyncGenerator[Output | FlexibleModel, None] = await super().astream_structured_predict(
            output_cls, prompt, held, **prompt_args
        )
        return found
