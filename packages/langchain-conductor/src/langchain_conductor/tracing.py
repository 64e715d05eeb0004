"""Plans and workers' calls as runs of LangChain's callbacks: whatever shows those shows them, nested and in time.

A call is a chain run ("step 2: coder") with the model's own run inside it. LangChain's models and runnables report
theirs themselves; a core model's is reported here, as that of a language model and not of a chat model, since handlers
take what a chat model says for a turn of the conversation. Which run encloses a call is told the way LangChain tells
it, by the config in the context: so it is right in every task and thread, and costs nothing where nobody listens.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from langchain_core.callbacks import AsyncCallbackManager, BaseRunManager, CallbackManager
from langchain_core.messages import get_buffer_string
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.runnables.config import (
    get_async_callback_manager_for_config,
    merge_configs,
    patch_config,
    var_child_runnable_config,
)
from langchain_core.utils.uuid import uuid7

from langchain_conductor.budget import Budget
from langchain_conductor.messages import lc_messages, lc_reply, lc_usage
from langchain_conductor.models import ChatModel, Counter, RunnableModel
from rl_conductor.models.base import Model, WrapperModel
from rl_conductor.planning.planner import Planner
from rl_conductor.planning.prompts import prompt_in
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.trace.events import Event, PlanStarted, StepStarted, WorkflowPlanned
from rl_conductor.types import Completion, Delta, Request
from rl_conductor.workflow.workflow import Workflow

UNSEEN = "nostream"
"""LangGraph's tag for models whose tokens are not part of the conversation."""

OF_ONE_MODEL = "ls_"
"""How the names begin of what LangChain tells tracers of one model, such as its temperature."""

Outputs = Callable[[Completion], None]

_asked: ContextVar[PlanStarted | StepStarted | None] = ContextVar("conductor_asked", default=None)
_workflow: ContextVar[Workflow | None] = ContextVar("conductor_workflow", default=None)


def note(event: Event) -> None:
    """Remember what the calls are for that the current task makes next; to be told every event as it happens."""
    match event:
        case PlanStarted():
            _asked.set(event)
            _workflow.set(None)
        case WorkflowPlanned():
            _workflow.set(event.plan.workflow)
        case StepStarted():
            _asked.set(event)


def inside(run: BaseRunManager | None) -> RunnableConfig:
    """The config of whatever is called on behalf of `run`, a chat model's."""
    if run is None:
        return ensure_config()
    children = AsyncCallbackManager(handlers=[], parent_run_id=run.run_id)
    children.set_handlers(
        [handler for handler in run.inheritable_handlers if not isinstance(handler, Counter | Budget)]
    )
    children.add_tags([*run.inheritable_tags, UNSEEN])
    children.add_metadata(
        {name: told for name, told in run.inheritable_metadata.items() if not name.startswith(OF_ONE_MODEL)}
    )
    return patch_config(ensure_config(), callbacks=children)


def identified(config: RunnableConfig | None) -> tuple[RunnableConfig, BaseRunManager]:
    """`config` with an id for the run that is to begin, and that run as the parent of others."""
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


class Reported(WrapperModel):
    """A `Model` whose calls show as runs inside of whichever run encloses them."""

    def __init__(self, model: Model, who: str) -> None:
        """`who` is the worker, or the planner."""
        super().__init__(model)
        self.who = who

    async def complete(self, request: Request) -> Completion:
        """The whole reply."""
        async with _runs(self, request) as ended:
            completion = await self.model.complete(request)
            ended(completion)
            return completion

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The reply as it is made."""
        async with _runs(self, request) as ended, aclosing(self.model.stream(request)) as deltas:
            async for delta in deltas:
                if delta.completion is not None:
                    ended(delta.completion)
                yield delta


def reported(model: Model, who: str) -> Model:
    """`model`, reported once."""
    return model if isinstance(model, Reported) else Reported(model, who)


def unreported(model: Model) -> Model:
    """`model` itself."""
    return model.model if isinstance(model, Reported) else model


def reported_pool(pool: WorkerPool) -> WorkerPool:
    """`pool` with every worker's calls reported."""
    return WorkerPool(replace(worker, model=reported(worker.model, worker.name)) for worker in pool.values())


def reported_planner(planner: Planner) -> Planner:
    """`planner` with its calls reported."""
    return replace(planner, model=reported(planner.model, "planner"))


# --------------------------------------------------------------------------------------------- runs


@asynccontextmanager
async def _runs(one: Reported, request: Request) -> AsyncIterator[Outputs]:
    told = _told(one)
    config = merge_configs(ensure_config(), {"metadata": told})
    manager = get_async_callback_manager_for_config(config)
    if not manager.handlers:
        yield lambda _: None
        return
    async with _chain_run(manager, config, told, request) as (children, chain_ended):
        if isinstance(one.model, ChatModel | RunnableModel) or one.capabilities.delegates:
            asked = _asked.set(None)  # a conductor's own calls are for its own plan
            try:
                yield chain_ended
            finally:
                _asked.reset(asked)
            return
        async with _model_run(children, one.model, request) as model_ended:

            def ended(completion: Completion) -> None:
                model_ended(completion)
                chain_ended(completion)

            yield ended


@asynccontextmanager
async def _chain_run(
    manager: AsyncCallbackManager, config: RunnableConfig, told: dict[str, Any], request: Request
) -> AsyncIterator[tuple[AsyncCallbackManager, Outputs]]:
    run = await manager.on_chain_start(None, _inputs(told, request), name=_title(told))
    replies: list[Completion] = []
    children = run.get_child()
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
async def _model_run(manager: AsyncCallbackManager, model: Model, request: Request) -> AsyncIterator[Outputs]:
    provider, _, name = model.name.partition(":")
    manager.add_metadata({"ls_provider": provider, "ls_model_name": name, "ls_model_type": "llm"})
    parameters = request.sampling.model_dump(mode="json", exclude_defaults=True)
    shown = get_buffer_string(lc_messages(request.messages))
    about: dict[str, Any] = {"name": model.name, "run_id": uuid7(), "invocation_params": parameters}
    runs = [run for half in _halves(manager) for run in await half.on_llm_start({"name": model.name}, [shown], **about)]
    replies: list[LLMResult] = []
    try:
        yield lambda completion: replies.append(_result(completion))
    except BaseException as error:
        for run in runs:
            await run.on_llm_error(error)
        raise
    for run in runs:
        await run.on_llm_end(replies[-1] if replies else LLMResult(generations=[[]]))


def _halves(manager: AsyncCallbackManager) -> Iterator[AsyncCallbackManager]:
    """The handlers that run inline, and the others: LangChain lets these miss the start of a call where it has both."""
    for inline in (True, False):
        half = manager.copy()
        half.set_handlers([handler for handler in manager.handlers if handler.run_inline == inline])
        yield half


def _told(one: Reported) -> dict[str, Any]:
    """What is known of the call, for the metadata of its runs."""
    match _asked.get():
        case StepStarted(round=number, index=index, worker=worker, attempt=attempt) if worker == one.who:
            return {"round": number, "step": index, "worker": worker, "attempt": attempt}
        case PlanStarted(round=number):
            return {"round": number, "worker": one.who}
    return {"worker": one.who}


def _title(told: dict[str, Any]) -> str:
    return f"step {told['step'] + 1}: {told['worker']}" if "step" in told else str(told["worker"])


def _inputs(told: dict[str, Any], request: Request) -> dict[str, Any]:
    """What is asked; a step's place in its plan as well, unless the step began before its plan was whole."""
    prompt = prompt_in(request.messages)
    workflow = _workflow.get()
    if "step" not in told or workflow is None:
        return {"prompt": prompt}
    step = workflow.steps[told["step"]]
    return {"subtask": step.subtask, "access": sorted(step.access), "prompt": prompt}


def _result(completion: Completion) -> LLMResult:
    message = lc_reply(
        completion.message,
        usage_metadata=lc_usage(completion.usage),
        response_metadata={"model_name": completion.model, "finish_reason": completion.finish_reason},
    )
    return LLMResult(generations=[[ChatGeneration(message=message)]])
