"""The places in which LlamaIndex's LLMs get the sampling parameters of a conductor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse
from llama_index.core.llms import LLM
from llama_index.llms.ollama import Ollama
from pydantic import Field, PrivateAttr
from typing_extensions import override

from llama_index.llms.conductor import Conductor, LLMModel
from llamaindex.ollama_server import ollama
from llamaindex.scripts import EchoLLM, plan, planner, user_messages
from rl_conductor import Limits, Request, RunError, Sampling
from rl_conductor.errors import BadRequestError, OutputLimitError
from rl_conductor.workflow.request_tokens import PLAN_TOKENS

ALL = Sampling(temperature=0.5, top_p=0.4, max_tokens=50, seed=7, stop=("END",))


class RecordingLLM(EchoLLM):
    """Records its fields and the keywords of each call."""

    _calls: list[dict[str, Any]] = PrivateAttr(default_factory=list)

    @override
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        own = EchoLLM.model_fields
        fields = {name: getattr(self, name) for name in type(self).model_fields if name not in own}
        self._calls.append(fields | {"keywords": kwargs})
        response: ChatResponse = super().chat(messages)
        return response


class OptionsLLM(RecordingLLM):
    """Has the fields of the LLMs of OpenAI, Anthropic and Ollama."""

    temperature: float = 0.1
    additional_kwargs: dict[str, Any] = Field(default_factory=dict)


class LimitedLLM(OptionsLLM):
    """Has the field of OpenAI's and Anthropic's for the maximum of tokens."""

    max_tokens: int | None = 16_000


class OpenAI(LimitedLLM):
    __module__ = "llama_index.llms.openai.base"


class OpenAILike(OpenAI):
    __module__ = "llama_index.llms.openai_like.base"


class Anthropic(LimitedLLM):
    __module__ = "llama_index.llms.anthropic.base"


class ResponsesLLM(OptionsLLM):
    top_p: float = 1.0
    max_output_tokens: int | None = None


class OpenAIResponses(ResponsesLLM):
    __module__ = "llama_index.llms.openai.responses"


class GoogleGenAI(RecordingLLM):
    __module__ = "llama_index.llms.google_genai.base"


async def sent(llm: RecordingLLM, sampling: Sampling) -> dict[str, Any]:
    """Returns the fields and keywords of a call with `sampling`."""
    await LLMModel(llm).complete(Request.user("Why?", sampling=sampling))
    return llm._calls[-1]


@pytest.mark.parametrize("kind", [OpenAI, OpenAILike])
async def test_openais_llm_gets_them_in_fields_and_additional_options(kind: type[OpenAI]) -> None:
    llm = kind(additional_kwargs={"user": "u1", "seed": 1})
    options = {"user": "u1", "top_p": 0.4, "seed": 7, "stop": ["END"]}
    expected = {"temperature": 0.5, "max_tokens": 50, "additional_kwargs": options, "keywords": {}}
    assert await sent(llm, ALL) == expected
    assert (llm.max_tokens, llm.additional_kwargs) == (16_000, {"user": "u1", "seed": 1})


async def test_settings_in_the_additional_options_of_an_llm_are_replaced_there() -> None:
    call = await sent(OpenAI(max_tokens=None, additional_kwargs={"max_completion_tokens": 900}), ALL)
    assert (call["max_tokens"], call["additional_kwargs"]["max_completion_tokens"]) == (None, 50)


async def test_anthropics_llm_gets_them_with_its_vendors_names() -> None:
    call = await sent(Anthropic(), ALL.model_copy(update={"seed": None}))
    options = {"top_p": 0.4, "stop_sequences": ["END"]}
    assert call == {"temperature": 0.5, "max_tokens": 50, "additional_kwargs": options, "keywords": {}}


async def test_openais_responses_llm_gets_them_in_fields() -> None:
    call = await sent(OpenAIResponses(), Sampling(temperature=0.5, top_p=0.4, max_tokens=50))
    fields = {"temperature": 0.5, "top_p": 0.4, "max_output_tokens": 50}
    assert call == fields | {"additional_kwargs": {}, "keywords": {}}


async def test_googles_llm_gets_them_in_its_generation_config() -> None:
    config = {"temperature": 0.5, "top_p": 0.4, "max_output_tokens": 50, "seed": 7, "stop_sequences": ["END"]}
    assert (await sent(GoogleGenAI(), ALL))["keywords"] == {"generation_config": config}
    assert (await sent(GoogleGenAI(), Sampling()))["keywords"] == {}


async def test_an_llm_of_another_vendor_gets_them_as_keywords() -> None:
    assert (await sent(RecordingLLM(), ALL))["keywords"] == ALL.model_dump(exclude_none=True, mode="json")


@pytest.mark.parametrize(
    ("llm", "sampling", "name"),
    [
        (Anthropic(), Sampling(seed=7), "seed"),
        (OpenAIResponses(), Sampling(stop=("END",)), "stop"),
        (GoogleGenAI(), Sampling(effort="low"), "reasoning_effort"),
    ],
)
async def test_a_setting_that_the_llm_has_no_place_for_is_refused(
    llm: RecordingLLM, sampling: Sampling, name: str
) -> None:
    with pytest.raises(BadRequestError, match=f"{type(llm).__name__} has no field {name}"):
        await sent(llm, sampling)


def test_they_reach_the_server_of_ollama() -> None:
    with ollama({"role": "assistant", "content": "Because."}) as server:
        llm = Ollama(model="tiny", base_url=server.url, context_window=8000, temperature=0.8)
        made = Conductor({"a": llm}, planner=planner(plan((0, "Go.", []))), temperature=0, max_tokens=50)
        made.chat(user_messages("Why?"), seed=7, stop=["END"], top_p=0.4)
    options = {"num_ctx": 8000, "temperature": 0.0, "num_predict": 50, "seed": 7, "stop": ["END"], "top_p": 0.4}
    assert server.requests[0]["options"] == options


async def test_an_llm_keeps_the_client_that_it_creates_for_a_call_with_settings() -> None:
    reply = {"role": "assistant", "content": "Because."}
    with ollama(reply, reply) as server:
        model = LLMModel(Ollama(model="tiny", base_url=server.url, context_window=8000))
        clients: list[object] = []
        for seed in (1, 2):
            await model.complete(Request.user("Why?", sampling=Sampling(seed=seed)))
            own = model.llm.__pydantic_private__ or {}
            clients.append(own["_async_client"] or own["_client"])  # which one depends on the event loop
    assert clients[0] is clients[1] is not None


class CutOffLLM(EchoLLM):
    """Fails as Google's LLM does when a reply reaches the maximum of tokens."""

    @override
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        raise RuntimeError("Response was terminated early: MAX_TOKENS")


async def test_a_reply_of_google_that_reaches_the_maximum_is_tried_again_with_a_larger_one() -> None:
    with pytest.raises(OutputLimitError, match="llamaindex:echo: the reply was cut off; raise max_tokens"):
        await LLMModel(CutOffLLM()).complete(Request.user("Why?"))


class ThinkingLLM(Anthropic):
    """Has the field of Anthropic's LLM for its budget for thinking."""

    thinking_dict: dict[str, int] = Field(default_factory=lambda: {"budget_tokens": 8000})


@pytest.mark.parametrize(
    ("llm", "maximum"),
    [
        (OpenAI(max_tokens=16_000), 16_000),
        (ThinkingLLM(max_tokens=16_000), 16_000),
        (OpenAI(max_tokens=16_000, additional_kwargs={"max_completion_tokens": 900}), 900),
        (OpenAI(max_tokens=None), None),
        (Ollama(model="tiny", context_window=8000, additional_kwargs={"num_predict": 300}), 300),
        (Ollama(model="tiny", context_window=8000), None),
    ],
)
def test_the_own_maximum_of_an_llm_is_reserved_and_sent(llm: LLM, maximum: int | None) -> None:
    made = Conductor({"a": llm}, planner=planner(plan((0, "Go.", []))), limits=Limits(tokens=1_000_000))
    assert made.conductor.pool["a"].sampling == Sampling(max_tokens=maximum)


class ConfiguredGoogleGenAI(GoogleGenAI):
    """Has a maximum in its private options, as Google's LLM keeps it."""

    _generation_config: dict[str, Any] = PrivateAttr(default_factory=lambda: {"max_output_tokens": 700})


def test_the_own_maximum_of_googles_llm_is_known() -> None:
    assert LLMModel(ConfiguredGoogleGenAI()).max_tokens == 700


def test_a_call_under_limits_may_use_the_maximum_that_was_reserved() -> None:
    llm = OpenAI(max_tokens=16_000)
    made = Conductor({"a": llm}, planner=planner(plan((0, "Go.", []))), limits=Limits(tokens=1_000_000))
    made.chat(user_messages("Why?"))
    assert llm._calls[-1]["max_tokens"] == 16_000
    with pytest.raises(RunError, match="tokens"):
        Conductor({"a": llm}, planner=planner(plan((0, "Go.", []))), limits=Limits(tokens=15_000)).complete("Why?")


@pytest.mark.parametrize("options", [{}, {"planner": ThinkingLLM()}])
def test_a_planner_that_thinks_gets_its_budget_on_top_of_the_tokens_of_a_plan(options: dict[str, Any]) -> None:
    sampling = Conductor({"a": ThinkingLLM()}, **options).conductor.planner.sampling
    assert sampling.max_tokens == PLAN_TOKENS + 8000
