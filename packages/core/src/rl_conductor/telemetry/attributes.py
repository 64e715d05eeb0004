"""Converts calls, runs and their errors to attributes of spans and metrics. Pure."""

from __future__ import annotations

from opentelemetry.util.types import AttributeValue

from rl_conductor.telemetry import conventions as name
from rl_conductor.trace.outcomes import CANCELLED, FAILURES
from rl_conductor.trace.trace import Call, Trace
from rl_conductor.types import Request, Usage

Attributes = dict[str, AttributeValue]

NO_ANSWER = "no_answer"


def model_attributes(full_name: str) -> Attributes:
    """Splits a name such as `openai:gpt-6-sol` into provider and model."""
    provider, _, model = full_name.partition(":")
    return {name.PROVIDER: name.PROVIDERS.get(provider, provider), name.REQUEST_MODEL: model or provider}


def error_attributes(finished: Call | Trace) -> Attributes:
    """Returns the error type of a call or run; empty if it succeeded."""
    if isinstance(finished, Call):
        return {name.ERROR: finished.outcome} if finished.outcome in FAILURES else {}
    if finished.completion is not None:
        return {}
    return {name.ERROR: CANCELLED if finished.was_cancelled else NO_ANSWER}


def usage_attributes(usage: Usage) -> Attributes:
    """Returns the token counts and the cost in US dollars."""
    attributes: Attributes = {
        name.INPUT_TOKENS: usage.input_tokens,
        name.CACHED_TOKENS: usage.cached_tokens,
        name.CACHE_WRITE_TOKENS: usage.cache_write_tokens,
        name.OUTPUT_TOKENS: usage.output_tokens,
        name.REASONING_TOKENS: usage.reasoning_tokens,
        name.COST: float(usage.cost),
    }
    return attributes | ({name.UNPRICED: usage.unpriced_calls} if usage.unpriced_calls else {})


def sampling_attributes(request: Request) -> Attributes:
    """Returns the sampling parameters that the request sets."""
    sampling = request.sampling
    parameters: dict[str, AttributeValue | None] = {
        name.REQUEST_TEMPERATURE: sampling.temperature,
        name.REQUEST_TOP_P: sampling.top_p,
        name.REQUEST_MAX_TOKENS: sampling.max_tokens,
        name.REQUEST_SEED: sampling.seed,
        name.REQUEST_STOP: sampling.stop or None,
    }
    return {key: value for key, value in parameters.items() if value is not None}
