"""Plans, workers and helpers shared by the tests."""

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
    """Formats (model, subtask, access) triples as the text of a plan."""
    models, subtasks, access = ([step[place] for step in steps] for place in range(3))
    return f"So.\nmodel_id = {models}\nsubtasks = {json.dumps(subtasks)}\naccess_list = {json.dumps(access)}"


TWO_STEPS = plan((0, "Write it.", []), (1, "Correct it.", ["all"]))


def planner(text: str = TWO_STEPS) -> ScriptedModel:
    """Returns a planner that always writes `text`."""
    return ScriptedModel(text, name="planner")


def conductor(first: Any = "A draft.", second: Any = "The whole answer.", **options: Any) -> Conductor:
    """Returns a conductor over `drafter` and `writer`; by default the first drafts and the second answers."""
    workers = {
        name: ScriptedModel(worker, name=name) if isinstance(worker, str | Sequence) or callable(worker) else worker
        for name, worker in (("drafter", first), ("writer", second))
    }
    return Conductor(workers, **{"planner": planner(), **options})


def tool_call_reply(tool: str, /, **arguments: Any) -> Message:
    """Returns a reply that calls a tool."""
    return Message.assistant(tool_calls=[ToolCall(id="call-1", name=tool, arguments=json.dumps(arguments))])


def weigh(kite: str) -> str:
    """Returns the weight of a kite in grams."""
    return f"{kite} weighs 310 grams."


def weigh_then_answer(request: Request) -> Any:
    """Calls the tool `weigh`, then answers with its result."""
    if request.messages[-1].role == "tool":
        return f"So: {request.messages[-1].text}"
    return tool_call_reply("weigh", kite="Heron")


def request_text(request: Request) -> str:
    """Returns the text of all messages of a request."""
    return "\n".join(message.text for message in request.messages)


def scripted_worker(llm: Conductor, worker: str) -> ScriptedModel:
    """Returns the scripted model of a worker."""
    model = llm.workers[worker]
    assert isinstance(model, ScriptedModel)
    return model


class EchoLLM(CustomLLM):
    """A custom LLM without async methods, which reports its usage."""

    window: int = 3900
    max_output: int = 256
    seconds: float = 0.0
    api_key: str = "sk-very-secret"
    fails: bool = False

    _prompts: list[str] = PrivateAttr(default_factory=list)

    @property
    def prompts(self) -> list[str]:
        """All prompts so far."""
        return self._prompts

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=self.window, num_output=self.max_output, model_name="echo")

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self._prompts.append(prompt)
        time.sleep(self.seconds)
        self._before_reply()
        return CompletionResponse(text="An echo.", raw={"usage": {"prompt_tokens": 11, "completion_tokens": 3}})

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        self._prompts.append(prompt)
        self._before_reply()

        def words() -> CompletionResponseGen:
            usage = {"usage": {"prompt_tokens": 11, "completion_tokens": 3}}
            time.sleep(self.seconds)
            yield CompletionResponse(text="An ", delta="An ", raw=usage)
            yield CompletionResponse(text="An echo.", delta="echo.", raw=usage)

        return words()

    def _before_reply(self) -> None:
        if self.fails:
            raise OSError(f"the line is down, and Bearer {self.api_key} was the key")


def user_messages(text: str) -> list[ChatMessage]:
    """Returns a conversation with a single question."""
    return [ChatMessage(content=text)]


async def wait_until(condition: Any) -> None:
    """Waits until `condition()` is true."""
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110  (there is no event to wait for)
            await asyncio.sleep(0.005)


def response_text(response: ChatResponse) -> str:
    return response.message.content or ""
