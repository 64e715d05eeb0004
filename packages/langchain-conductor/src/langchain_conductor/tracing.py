"""Shows planning and workers' calls as runs in LangChain's callbacks and tracers, nested and in time.

A call is a chain run ("step 2: coder") that contains the model's own run. LangChain's models and runnables report
their runs themselves; for a core model the run is reported here, as that of a language model and not of a chat model,
since handlers treat the reply of a chat model as a turn of the conversation. The parent run is passed as in LangChain
itself, through the config in the context, so it is right in every task and thread and costs nothing without handlers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from contextvars import ContextVar
from inspect import iscoroutinefunction
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManager,
    BaseCallbackHandler,
    BaseRunManager,
    CallbackManager,
    UsageMetadataCallbackHandler,
)
from langchain_core.messages import get_buffer_string
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.runnables.config import (
    get_async_callback_manager_for_config,
    merge_configs,
    patch_config,
    var_child_runnable_config,
)
from langchain_core.tracers._streaming import _StreamingCallbackHandler
from langchain_core.tracers.base import BaseTracer
from langchain_core.tracers.event_stream import _AstreamEventsCallbackHandler
from langchain_core.tracers.log_stream import LogStreamCallbackHandler
from langchain_core.utils.uuid import uuid7

from langchain_conductor.messages import lc_messages, lc_reply, lc_usage
from langchain_conductor.models.budget import BudgetCallback, suspend_budget_callback
from langchain_conductor.models.chat_model import ChatModel
from langchain_conductor.models.counted_function import CountedFunction
from langchain_conductor.models.runnable_model import RunnableModel
from rl_conductor import Planner
from rl_conductor.integration import WrapperModel, prompt_in
from rl_conductor.models import Model
from rl_conductor.trace import Event, PlanStarted, StepStarted, WorkflowPlanned
from rl_conductor.types import Completion, Delta, Request
from rl_conductor.workflow import Workflow

NOSTREAM_TAG = "nostream"
"""LangGraph's tag for models whose tokens are not part of the conversation."""

MODEL_METADATA_PREFIX = "ls_"
"""Prefix of the metadata that LangChain passes to tracers about one model, such as its temperature."""

EVENT_STREAM_HANDLERS = (_AstreamEventsCallbackHandler, LogStreamCallbackHandler)
"""Handlers behind `astream_events` and `astream_log`."""

EndRun = Callable[[Completion], None]
"""Stores the reply with which a run ends."""

_current_call: ContextVar[PlanStarted | StepStarted | None] = ContextVar("conductor_current_call", default=None)
_hides_drafts: ContextVar[bool] = ContextVar("conductor_hides_drafts", default=False)
_current_workflow: ContextVar[Workflow | None] = ContextVar("conductor_current_workflow", default=None)


@contextmanager
def hide_draft_tokens() -> Iterator[None]:
    """Hides the tokens of the planner and of all steps but the last from handlers, for calls in this block."""
    token = _hides_drafts.set(True)
    try:
        yield
    finally:
        _hides_drafts.reset(token)


def track_event(event: Event) -> None:
    """Stores the current task's plan or step, for the runs of its calls; to be called for each event."""
    match event:
        case PlanStarted():
            _current_call.set(event)
            _current_workflow.set(None)
        case WorkflowPlanned():
            _current_workflow.set(event.plan.workflow)
        case StepStarted():
            _current_call.set(event)


def track_workflow(workflow: Workflow) -> None:
    """Stores the workflow of the step that the current task runs, for hosts that run it in another task than the plan.

    Otherwise the step would be taken for one of the workflow around it, if there is one.
    """
    _current_workflow.set(workflow)


def child_config(
    run: BaseRunManager | None, call_config: RunnableConfig | None, *, stream_drafts: bool
) -> RunnableConfig:
    """Builds the config of calls that are made on behalf of `run`, the run of a chat model.

    Unless `stream_drafts` is set, handlers don't get the tokens of these calls, which would mix with the answer's.
    `call_config` is the part of the chat model's own config that LangChain does not pass on.
    """
    if run is None:
        return ensure_config(call_config)
    children = AsyncCallbackManager(handlers=[], parent_run_id=run.run_id)
    handlers = [
        handler
        for handler in run.inheritable_handlers
        if not isinstance(handler, UsageMetadataCallbackHandler | BudgetCallback)
    ]  # the run's own reply has the usage of all these calls
    children.set_handlers(handlers if stream_drafts else [_without_tokens(handler) for handler in handlers])
    children.add_tags([*run.inheritable_tags, NOSTREAM_TAG])
    children.add_metadata(
        {key: value for key, value in run.inheritable_metadata.items() if not key.startswith(MODEL_METADATA_PREFIX)}
    )
    return patch_config(ensure_config(call_config), callbacks=children)


@contextmanager
def hide_tokens(*, from_graph: bool) -> Iterator[None]:
    """Hides the tokens of calls in this block from handlers, and `from_graph` also from LangGraph's messages."""
    config = ensure_config()
    manager = get_async_callback_manager_for_config(config)
    manager.set_handlers([_without_tokens(handler) for handler in manager.handlers])
    if from_graph:
        manager.add_tags([NOSTREAM_TAG])
    token = var_child_runnable_config.set(patch_config(config, callbacks=manager))
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


def _without_tokens(handler: BaseCallbackHandler) -> BaseCallbackHandler:
    """Returns a handler with the same state that gets no tokens.

    Tracers keep theirs, as these belong to the call's run; so do LangGraph's handlers, which heed its own tag.
    """
    if isinstance(handler, _SharedState):  # a conductor around this one hides them already
        return handler
    if isinstance(handler, BaseTracer | _StreamingCallbackHandler) and not isinstance(handler, EVENT_STREAM_HANDLERS):
        return handler
    ignore_token = _ignore_token_async if iscoroutinefunction(handler.on_llm_new_token) else _ignore_token
    name, bases = type(handler).__name__, (_SharedState, type(handler))  # LangChain's warnings name the class
    quiet: BaseCallbackHandler = object.__new__(type(name, bases, {"on_llm_new_token": ignore_token}))
    object.__setattr__(quiet, "__dict__", vars(handler))
    return quiet


class _SharedState:
    """Makes handlers with the same state equal, so that LangChain does not add the original beside its quiet copy."""

    def __eq__(self, other: object) -> bool:
        return vars(self) is vars(other)

    def __hash__(self) -> int:
        return id(vars(self))


def _ignore_token(*_: Any, **__: Any) -> None:
    pass


async def _ignore_token_async(*_: Any, **__: Any) -> None:
    pass


def prepare_run(config: RunnableConfig | None) -> tuple[RunnableConfig, BaseRunManager]:
    """Assigns an id to the run that `config` will start; returns the config, and the run as a parent of others."""
    config = ensure_config(config)
    manager = CallbackManager.configure(
        config["callbacks"], inheritable_tags=config["tags"], inheritable_metadata=config["metadata"]
    )
    run = BaseRunManager(
        run_id=config.get("run_id") or uuid7(),
        handlers=manager.handlers,
        inheritable_handlers=manager.inheritable_handlers,
        inheritable_tags=manager.inheritable_tags,
        inheritable_metadata=manager.inheritable_metadata,
    )
    return {**config, "callbacks": manager, "run_id": run.run_id}, run


class TracedModel(WrapperModel):
    """Reports the calls of a `Model` as child runs of the surrounding run."""

    def __init__(self, model: Model, role: str) -> None:
        """Wraps `model`; `role` is the worker's name, or `planner`."""
        super().__init__(model)
        self.role = role

    async def complete(self, request: Request) -> Completion:
        """Returns the whole reply."""
        async with _call_runs(self, request) as end_run:
            completion = await self.model.complete(request)
            end_run(completion)
            return completion

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        async with _call_runs(self, request) as end_run, aclosing(self.model.stream(request)) as deltas:
            async for delta in deltas:
                if delta.completion is not None:
                    end_run(delta.completion)
                yield delta


def trace_model(model: Model, role: str) -> Model:
    """Wraps `model`, unless it is traced already."""
    return model if isinstance(model, TracedModel) else TracedModel(model, role)


def untraced(model: Model) -> Model:
    """Removes the wrapper of `trace_model`."""
    return model.model if isinstance(model, TracedModel) else model


def trace_planner(planner: Planner) -> Planner:
    """Traces the calls of the planner."""
    return planner.wrap_models(lambda model: trace_model(model, "planner"))


# --------------------------------------------------------------------------------------------- runs


@asynccontextmanager
async def _call_runs(traced: TracedModel, request: Request) -> AsyncIterator[EndRun]:
    """Opens the runs of one call and yields a function that stores its reply."""
    with suspend_budget_callback():
        metadata = _call_metadata(traced)
        config = merge_configs(ensure_config(), {"metadata": metadata})
        manager = get_async_callback_manager_for_config(config)
        if not manager.handlers:
            yield lambda _: None
            return
        async with _chain_run(manager, config, metadata, request) as (children, end_chain):
            if isinstance(traced.model, ChatModel | RunnableModel | CountedFunction) or traced.capabilities.delegates:
                token = _current_call.set(None)  # a nested conductor's calls belong to its own plan
                try:
                    yield end_chain
                finally:
                    _current_call.reset(token)
                return
            async with _model_run(children, traced.model, request) as end_model:

                def end_both(completion: Completion) -> None:
                    end_model(completion)
                    end_chain(completion)

                yield end_both


@asynccontextmanager
async def _chain_run(
    manager: AsyncCallbackManager, config: RunnableConfig, metadata: dict[str, Any], request: Request
) -> AsyncIterator[tuple[AsyncCallbackManager, EndRun]]:
    run = await manager.on_chain_start(None, _inputs(metadata, request), name=_run_name(metadata))
    replies: list[Completion] = []
    children = run.get_child()
    if _hides_drafts.get() and not _is_last_step(metadata):
        children.set_handlers([_without_tokens(handler) for handler in children.handlers])
    token = var_child_runnable_config.set(patch_config(config, callbacks=children))
    try:
        yield children, replies.append
    except BaseException as error:
        await run.on_chain_error(error)
        raise
    finally:
        var_child_runnable_config.reset(token)
    await run.on_chain_end({"reply": replies[-1].text} if replies else {})


@asynccontextmanager
async def _model_run(manager: AsyncCallbackManager, model: Model, request: Request) -> AsyncIterator[EndRun]:
    provider, _, name = model.name.partition(":")
    manager.add_metadata({"ls_provider": provider, "ls_model_name": name, "ls_model_type": "llm"})
    parameters = request.sampling.model_dump(mode="json", exclude_defaults=True)
    prompts = [get_buffer_string(lc_messages(request.messages))]
    details: dict[str, Any] = {"name": model.name, "run_id": uuid7(), "invocation_params": parameters}
    runs = [
        run
        for group in _split_by_inline(manager)
        for run in await group.on_llm_start({"name": model.name}, prompts, **details)
    ]
    results: list[LLMResult] = []
    try:
        yield lambda completion: results.append(_to_llm_result(completion))
    except BaseException as error:
        for run in runs:
            await run.on_llm_error(error)
        raise
    for run in runs:
        await run.on_llm_end(results[-1] if results else LLMResult(generations=[[]]))


def _split_by_inline(manager: AsyncCallbackManager) -> Iterator[AsyncCallbackManager]:
    """Separates inline handlers from others, because LangChain skips the start of a call for the latter in a mix."""
    for inline in (True, False):
        group = manager.copy()
        group.set_handlers([handler for handler in manager.handlers if handler.run_inline == inline])
        yield group


def _call_metadata(traced: TracedModel) -> dict[str, Any]:
    """Returns the call's round, step, worker and attempt as metadata of its runs."""
    match _current_call.get():
        case StepStarted(round=round_index, index=index, worker=worker, attempt=attempt) if worker == traced.role:
            return {"round": round_index, "step": index, "worker": worker, "attempt": attempt}
        case PlanStarted(round=round_index):
            return {"round": round_index, "worker": traced.role}
    return {"worker": traced.role}


def _is_last_step(metadata: dict[str, Any]) -> bool:
    workflow = _current_workflow.get()
    return workflow is not None and metadata.get("step") == len(workflow.steps) - 1


def _run_name(metadata: dict[str, Any]) -> str:
    return f"step {metadata['step'] + 1}: {metadata['worker']}" if "step" in metadata else str(metadata["worker"])


def _inputs(metadata: dict[str, Any], request: Request) -> dict[str, Any]:
    """Builds the inputs of a call's run; subtask and access are missing if the step began before its plan was whole."""
    prompt = prompt_in(request.messages)
    workflow = _current_workflow.get()
    if "step" not in metadata or workflow is None:
        return {"prompt": prompt}
    step = workflow.steps[metadata["step"]]
    return {"subtask": step.subtask, "access": sorted(step.access), "prompt": prompt}


def _to_llm_result(completion: Completion) -> LLMResult:
    message = lc_reply(
        completion.message,
        usage_metadata=lc_usage(completion.usage),
        response_metadata={"model_name": completion.model, "finish_reason": completion.finish_reason},
    )
    return LLMResult(generations=[[ChatGeneration(message=message)]])
