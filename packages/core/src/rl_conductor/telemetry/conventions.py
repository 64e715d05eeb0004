"""Attribute names of OpenTelemetry's semantic conventions for generative AI, which are not stable yet.

Spans and metrics follow github.com/open-telemetry/semantic-conventions-genai at VERSION. Attributes without a
convention are named `rl_conductor.*`.
"""

from __future__ import annotations

VERSION = "e8fc5751506258db1459d1bde47994e01dee922e"
"""A commit of that repository."""
SCHEMA = "https://opentelemetry.io/schemas/1.41.0"
"""Schema of all other attributes, such as `error.type`."""

OPERATION = "gen_ai.operation.name"
INVOKE_WORKFLOW, PLAN, INVOKE_AGENT, CHAT = "invoke_workflow", "plan", "invoke_agent", "chat"
EXECUTE_TOOL = "execute_tool"

WORKFLOW = "gen_ai.workflow.name"
AGENT = "gen_ai.agent.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_SEED = "gen_ai.request.seed"
REQUEST_STOP = "gen_ai.request.stop_sequences"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_TOP_P = "gen_ai.request.top_p"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL = "gen_ai.tool.name"
TOOL_ARGUMENTS, TOOL_RESULT = "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105
ERROR = "error.type"

PROVIDERS = {"google": "gcp.gemini"}
"""Providers that have another name in the conventions."""

TOKEN_USAGE = "gen_ai.client.token.usage"  # noqa: S105
OPERATION_DURATION = "gen_ai.client.operation.duration"
WORKFLOW_DURATION = "gen_ai.workflow.duration"
TOKENS = [4**power for power in range(14)]
SECONDS = [0.01 * 2**power for power in range(14)]
WORKFLOW_SECONDS = [1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200]

RUN = "rl_conductor.run.id"
ROUND = "rl_conductor.round"
STEP = "rl_conductor.step"
ACCESS = "rl_conductor.step.access"
PLANNED_WORKER = "rl_conductor.step.planned_worker"
ATTEMPT = "rl_conductor.attempt"
SOURCE = "rl_conductor.plan.source"
SAMPLES = "rl_conductor.plan.samples"
CONSTRAINED = "rl_conductor.plan.constrained"
STEPS = "rl_conductor.plan.steps"
ANSWER = "rl_conductor.answer.source"
COST = "rl_conductor.cost"
UNPRICED = "rl_conductor.unpriced_calls"
