"""Plans, workers and tools that the tests share."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse, CompletionResponseGen
from llama_index.core.llms import CustomLLM, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback
from pydantic import PrivateAttr

from core.runs import SOON
from llama_index.llms.conductor import Conductor
from rl_conductor import Message, Request, ScriptedModel
from rl_conductor.types import ToolCall


def plan(*steps: tuple[int, str, object]) -> str:
    """A plan as the Conductor writes it, from (model, subtask, access) triples."""
    models, subtasks, access = ([step[place] for step in steps] for place in range(3))
    return f"So.\nmodel_id = {models}\nsubtasks = {json.dumps(subtasks)}\naccess_list = {json.dumps(access)}"


TWO_STEPS = plan((0, "Write it.", []), (1, "Correct it.", ["all"]))


def planner(text: str = TWO_STEPS) -> ScriptedModel:
    """A planner that always writes this."""
    return ScriptedModel(text, name="planner")


def conductor(first: Any = "A draft.", second: Any = "The whole answer.", **options: Any) -> Conductor:
    """A conductor whose first worker drafts and whose second answers."""
    workers = {
        name: ScriptedModel(worker, name=name) if isinstance(worker, str | Sequence) or callable(worker) else worker
        for name, worker in (("drafter", first), ("writer", second))
    }
    return Conductor(workers, **{"planner": planner(), **options})


def calling(tool: str, /, **arguments: Any) -> Message:
    """A reply that calls a tool."""
    return Message.assistant(tool_calls=[ToolCall(id="call-1", name=tool, arguments=json.dumps(arguments))])


def shown(request: Request) -> str:
    """All that a model was shown."""
    return "\n".join(message.text for message in request.messages)


def core_of(llm: Conductor, worker: str) -> ScriptedModel:
    """The scripted model that a worker was made of."""
    model = llm.workers[worker]
    assert isinstance(model, ScriptedModel)
    return model


class EchoLLM(CustomLLM):
    """A LlamaIndex LLM of one's own: it has no async half, and says how long its prompt was."""

    window: int = 3900
    seconds: float = 0.0
    api_key: str = "sk-very-secret"
    fails: bool = False

    _prompts: list[str] = PrivateAttr(default_factory=list)

    @property
    def prompts(self) -> list[str]:
        """Every prompt so far."""
        return self._prompts

    @property
    def metadata(self) -> LLMMetadata:
        """Its context window is what a test says."""
        return LLMMetadata(context_window=self.window, model_name="echo")

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """The same words each time."""
        self._prompts.append(prompt)
        time.sleep(self.seconds)
        self._check_line()
        return CompletionResponse(text="An echo.", raw={"usage": {"prompt_tokens": 11, "completion_tokens": 3}})

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """The same words, one after the other."""
        self._prompts.append(prompt)
        self._check_line()

        def words() -> CompletionResponseGen:
            usage = {"usage": {"prompt_tokens": 11, "completion_tokens": 3}}
            time.sleep(self.seconds)
            yield CompletionResponse(text="An ", delta="An ", raw=usage)
            yield CompletionResponse(text="An echo.", delta="echo.", raw=usage)

        return words()

    def _check_line(self) -> None:
        if self.fails:
            raise OSError(f"the line is down, and Bearer {self.api_key} was the key")


def asked(text: str) -> list[ChatMessage]:
    """A conversation of one question."""
    return [ChatMessage(content=text)]


async def until(condition: Any) -> None:
    """Wait until `condition()` holds."""
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110  (there is nothing to be told by)
            await asyncio.sleep(0.005)


def text_of(response: ChatResponse) -> str:
    """The text of a response."""
    return response.message.content or ""
