"""Replays a trace from its recorded replies: no model is called, nothing is spent, and nothing waits."""

from __future__ import annotations

from rl_conductor.calls.budget import Budget
from rl_conductor.calls.context import RunContext
from rl_conductor.errors import ConfigError, RunError
from rl_conductor.execution.question import to_request
from rl_conductor.execution.run import Run
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.replay.recording import Recording
from rl_conductor.trace.setup import Setup
from rl_conductor.trace.trace import PlanRecord, Round, Trace
from rl_conductor.workflow.limits import Limits


async def replay(trace: Trace) -> Trace:
    """Runs `trace` again, answering each call from its recording, and returns the new trace.

    A request without a recorded reply fails with `BadRequestError`, and `differences` reports it.

    Raises:
        ConfigError: the trace has no setup or no question, its run was cancelled, or a guardrail kept texts out of it.
    """
    setup = _check_replayable(trace)
    first = trace.rounds[0].plan if trace.rounds else None
    run = _create_run(trace, setup, first, Recording(trace))
    try:
        return await run.run(first.workflow if first and first.source == "given" else None)
    except RunError as failed:
        return failed.trace


def _check_replayable(trace: Trace) -> Setup:
    if trace.setup is None:
        raise ConfigError("the trace can't be replayed: it has no setup, which describes the planner and pool")
    if trace.was_cancelled:
        raise ConfigError("the trace can't be replayed: its run was cancelled, so the recording is incomplete")
    for check in trace.checks:
        if check.is_blocking or (check.stage, check.outcome) == ("prompt", "redacted"):
            raise ConfigError(f"the trace can't be replayed, because texts are not in it: {check.in_words}")
    return trace.setup


def _create_run(trace: Trace, setup: Setup, first: PlanRecord | None, recording: Recording) -> Run:
    planner = Planner.from_setup(setup.planner, recording.model(trace.planner, setup.planner.capabilities))
    workers = (Worker.from_setup(entry, recording.model(entry.model, entry.capabilities)) for entry in setup.workers)
    planned = sum(round_.plan.is_complete for round_ in trace.rounds)  # a resumed run may have more than its limits
    context = RunContext(
        limits=trace.limits.model_copy(update={"rounds": max(trace.limits.rounds, planned)}),
        retries=setup.retries,
        keep_prompts=any(call.request for call in trace.calls),
        delimiter_key=trace.delimiter_key,
    )
    context.budget = Budget(Limits())  # replies are replayed, so nothing is spent
    return Run(
        context=context,
        planner=planner,
        pool=WorkerPool(workers),
        request=to_request(trace.request),
        policy=trace.policy,
        access=setup.access,
        stream=True,
        interrupted=Round(plan=first) if first and first.source in ("router", "learned") else None,
    )
