"""What spans and metrics say of calls, runs and their errors. Values in, attributes out."""

from __future__ import annotations

from opentelemetry.util.types import AttributeValue

from rl_conductor.telemetry import conventions as name
from rl_conductor.trace.trace import Call, Trace
from rl_conductor.types import Request, Usage

Attributes = dict[str, AttributeValue]

NO_ANSWER = "no_answer"


def model_of(full_name: str) -> Attributes:
    """The provider and the model of a name such as `openai:gpt-5`."""
    provider, _, model = full_name.partition(":")
    return {name.PROVIDER: name.PROVIDERS.get(provider, provider), name.REQUEST_MODEL: model or provider}


def error_of(ended: Call | Trace) -> Attributes:
    """How a call or a run failed, in a word; nothing if it did not."""
    if isinstance(ended, Call):
        return {} if ended.outcome == "ok" else {name.ERROR: ended.outcome}
    if ended.completion is not None:
        return {}
    return {name.ERROR: "cancelled" if ended.error == "cancelled" else NO_ANSWER}


def usage_of(usage: Usage) -> Attributes:
    """What was used, and what it cost."""
    said: Attributes = {
        name.INPUT_TOKENS: usage.input_tokens,
        name.CACHED_TOKENS: usage.cached_tokens,
        name.CACHE_WRITE_TOKENS: usage.cache_write_tokens,
        name.OUTPUT_TOKENS: usage.output_tokens,
        name.REASONING_TOKENS: usage.reasoning_tokens,
        name.COST: float(usage.cost),
    }
    return said | ({name.UNPRICED: usage.unpriced_calls} if usage.unpriced_calls else {})


def asked_of(request: Request) -> Attributes:
    """How tokens were to be drawn."""
    sampling = request.sampling
    said: dict[str, AttributeValue | None] = {
        name.REQUEST_TEMPERATURE: sampling.temperature,
        name.REQUEST_TOP_P: sampling.top_p,
        name.REQUEST_MAX_TOKENS: sampling.max_tokens,
        name.REQUEST_SEED: sampling.seed,
        name.REQUEST_STOP: sampling.stop or None,
    }
    return {key: value for key, value in said.items() if value is not None}
