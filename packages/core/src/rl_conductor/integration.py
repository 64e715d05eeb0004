"""Building blocks for adapters to other frameworks: their workers, calls on foreign event loops, errors, budgets.

The LangChain and LlamaIndex packages are built on this module. Everything else that an adapter needs is in
`rl_conductor` and its documented sub-packages; an import contract checks that these two use nothing else.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ValidationError

from rl_conductor._internal.blocking import call_async_or_sync, in_thread, iterate_in_thread, stream_async_or_sync
from rl_conductor._internal.streams import callback_to_async_iterator, within
from rl_conductor._internal.sync import iterate_sync, run_sync
from rl_conductor._internal.validation import FieldError, field_errors, first_field_error
from rl_conductor.agents.function_result import describe_no_reply, result_text
from rl_conductor.agents.tool import vendor_safe_name
from rl_conductor.calls.budget import Amount, Reservation
from rl_conductor.calls.failures import is_rejection
from rl_conductor.calls.pause import PauseSignal
from rl_conductor.calls.scope import current_scope
from rl_conductor.conductor import Conductor
from rl_conductor.config.discovered_pool import DiscoveredPool
from rl_conductor.config.discovery import discover
from rl_conductor.config.learned_folder import load_folder
from rl_conductor.config.profiles import ProfileName, profile_named
from rl_conductor.errors import ConfigError
from rl_conductor.execution.stepwise import Stepwise
from rl_conductor.models.anthropic.wire import REDACTED_PREFIX, THINKING_PREFIX, claude_schema
from rl_conductor.models.attachments import move_attachments
from rl_conductor.models.base import OnePieceModel, WrapperModel, require
from rl_conductor.models.foreign_errors import host_error, model_error
from rl_conductor.models.google.wire import THOUGHT_PREFIX
from rl_conductor.models.object_parts import instances_in, parts_of
from rl_conductor.models.openai.wire import TIERS_WITH_OWN_PRICE, TokenCounts, response_format_of, token_counts
from rl_conductor.models.prices import price_of, priced
from rl_conductor.models.redaction import redacted_repr
from rl_conductor.models.replies.checks import checked
from rl_conductor.models.request_options import allows_parallel_calls, parse_response_format, parse_tool_choice
from rl_conductor.plan_text.grammar import PLAN_FORMAT_NAME
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.function_model import FunctionModel, WorkerFunction, is_worker_function
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.pool_file import WorkerEntry, worker_from
from rl_conductor.pool.worker import Described
from rl_conductor.prompting.worker_prompt import subtask_in
from rl_conductor.types import prompt_in
from rl_conductor.types.completions import parse_finish_reason
from rl_conductor.types.messages import arguments_of, labelled_text
from rl_conductor.types.value import UserValue
from rl_conductor.workflow.plan_space import AccessMode
from rl_conductor.workflow.request_tokens import UpperBound, upper_bound

__all__ = [
    "PLAN_FORMAT_NAME",
    "REDACTED_PREFIX",
    "THINKING_PREFIX",
    "THOUGHT_PREFIX",
    "TIERS_WITH_OWN_PRICE",
    "AccessMode",
    "Amount",
    "Described",
    "FieldError",
    "FunctionModel",
    "LearnedSource",
    "OnePieceModel",
    "PauseSignal",
    "ProfileName",
    "Reservation",
    "Stepwise",
    "TokenCounts",
    "UpperBound",
    "UserValue",
    "WorkerEntry",
    "WorkerFunction",
    "WrapperModel",
    "allows_parallel_calls",
    "arguments_of",
    "call_async_or_sync",
    "callback_to_async_iterator",
    "checked",
    "claude_schema",
    "current_scope",
    "describe_no_reply",
    "field_errors",
    "first_field_error",
    "host_error",
    "in_thread",
    "instances_in",
    "is_rejection",
    "is_worker_function",
    "iterate_in_thread",
    "iterate_sync",
    "labelled_text",
    "model_error",
    "move_attachments",
    "parse_finish_reason",
    "parse_response_format",
    "parse_tool_choice",
    "parts_of",
    "price_of",
    "priced",
    "profile_named",
    "prompt_in",
    "redacted_repr",
    "require",
    "response_format_of",
    "result_text",
    "run_sync",
    "select_pool",
    "settings_error",
    "stream_async_or_sync",
    "subtask_in",
    "token_counts",
    "upper_bound",
    "vendor_safe_name",
    "within",
    "worker_from",
]

LearnedSource = Conductor | Path | str
"""A Conductor, or the folder of a learned one."""


def settings_error(error: ValidationError, model: type[BaseModel]) -> ConfigError:
    """Returns the error about the first wrong setting of `model`: its name, its value without secrets, and advice."""
    field = field_errors(error, model=model)[0]
    return ConfigError(f"{field.path} is {redacted_repr(field.value)}: {field.message}")


def select_pool(
    workers: WorkerPool | None,
    planner: Planner | None,
    conductor: LearnedSource | None,
) -> DiscoveredPool:
    """Selects the workers and the planner of an adapter's model from its arguments.

    Args:
        workers: by default those of the learned folder's pool file; without a `conductor`, those found on this machine.
        planner: replaces the planner.
        conductor: a Conductor, all of whose settings are kept, or the folder of a learned one.

    Raises:
        ConfigError: `conductor` is something else, `workers` were passed beside a Conductor, none of them can plan, or
            the folder can't be loaded.
    """
    if not isinstance(conductor, LearnedSource | None):
        kind = type(conductor).__name__
        raise ConfigError(f"conductor is a {kind}; write a rl_conductor.Conductor, or the folder of a learned one")
    if isinstance(conductor, Conductor):
        if workers is not None:
            raise ConfigError("workers and a conductor were passed, which has its own workers; pass one of them")
        selected = DiscoveredPool(**vars(conductor.config))
    elif conductor is not None:
        return load_folder(conductor, pool=workers, planner=planner)
    elif workers is not None:
        return DiscoveredPool(planner=planner or Planner.from_pool(workers), pool=workers)
    else:
        selected = discover()
    return selected if planner is None else selected.with_planner(planner)
