"""Building blocks for adapters to other frameworks: sync bridges, calls on foreign event loops, redaction, budgets.

The LangChain and LlamaIndex packages are built on this module. Everything else that an adapter needs is in
`rl_conductor` and its documented sub-packages.
"""

from rl_conductor._internal.blocking import (
    call_async_or_sync,
    exclude_running_loop,
    in_thread,
    is_loop_error,
    iterate_in_thread,
    stream_async_or_sync,
)
from rl_conductor._internal.streams import callback_to_async_iterator
from rl_conductor._internal.sync import iterate_sync, run_sync
from rl_conductor._internal.validation import FieldError, field_errors, first_field_error
from rl_conductor.calls.budget import Reservation
from rl_conductor.calls.scope import current_scope
from rl_conductor.models.base import parse_retry_after
from rl_conductor.models.openai.wire import is_strict_schema, refusal
from rl_conductor.models.prices import price_of
from rl_conductor.models.redaction import find_secrets, parts_of, redact_secrets
from rl_conductor.plan_text.grammar import PLAN_FORMAT_NAME
from rl_conductor.pool.pool_file import WorkerEntry, worker_from
from rl_conductor.pool.worker_prompt import prompt_in, subtask_in
from rl_conductor.types.completions import parse_finish_reason

__all__ = [
    "PLAN_FORMAT_NAME",
    "FieldError",
    "Reservation",
    "WorkerEntry",
    "call_async_or_sync",
    "callback_to_async_iterator",
    "current_scope",
    "exclude_running_loop",
    "field_errors",
    "find_secrets",
    "first_field_error",
    "in_thread",
    "is_loop_error",
    "is_strict_schema",
    "iterate_in_thread",
    "iterate_sync",
    "parse_finish_reason",
    "parse_retry_after",
    "parts_of",
    "price_of",
    "prompt_in",
    "redact_secrets",
    "refusal",
    "run_sync",
    "stream_async_or_sync",
    "subtask_in",
    "worker_from",
]
