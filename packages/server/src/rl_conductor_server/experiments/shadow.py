"""Shadow runs: after a user has the answer, the experiment's other arm gets the same request, and both are compared.

Shadow runs have their own queue and budget and never affect the user: if the queue is full, the budget is used up or
the judge's reply is unusable, the pair is dropped and counted. When the server stops, unfinished comparisons end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal

from rl_conductor.errors import ConductorError, RunError
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Message, Request
from rl_conductor.workflow.policy import Policy
from rl_conductor_server.auth.budgets import KeyBudget
from rl_conductor_server.catalog import ServedModel
from rl_conductor_server.errors import ApiError
from rl_conductor_server.experiments.experiment import Experiment
from rl_conductor_server.experiments.judge import AnswerPair, NoVerdictError, compare_answers
from rl_conductor_server.experiments.sampling import hash_to_fraction
from rl_conductor_server.metrics import Metrics
from rl_conductor_server.parsed_request import Extension, ParsedRequest
from rl_conductor_server.runs.registry import RunRegistry
from rl_conductor_server.runs.request import AdmittedRequest, admit
from rl_conductor_server.runs.run_queue import RunQueue
from rl_conductor_server.settings import ShadowEntry
from rl_conductor_server.store import Arm, Pair, Store
from rl_conductor_server.store.models import INTERNAL_APIS, JUDGE, SHADOW, SHADOW_OF

log = logging.getLogger("rl_conductor_server")

MAX_RUNS_PER_PAIR = 2
"""Runs of one pair that are in progress at the same time: the judge reads both orders."""
QUEUE_SIZE = 64
"""Answers of an experiment that may wait to be compared; further ones are dropped."""


@dataclass(frozen=True)
class UserAnswer:
    """An answer that a user got, with the request for it."""

    request: AdmittedRequest
    trace: Trace


class ShadowRunner:
    """Runs and judges the shadows of one experiment."""

    def __init__(self, experiment: Experiment, entry: ShadowEntry, store: Store, metrics: Metrics) -> None:
        self.budget = KeyBudget(f"shadow:{experiment.name}", entry, store)
        self._experiment = experiment
        self._entry = entry
        self._store = store
        self._metrics = metrics
        queue = RunQueue(entry.concurrency * MAX_RUNS_PER_PAIR, 0)
        self._runs = RunRegistry(store, queue, metrics, replays=queue, on_answer=_ignore_answer)
        self._queue: asyncio.Queue[UserAnswer] = asyncio.Queue(QUEUE_SIZE)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """Compares answers while the block runs; unfinished comparisons are cancelled at its end."""
        # Started here and not by the runs that they follow, because a task would inherit the budget of such a run.
        workers = [asyncio.create_task(self._process_queue(), name="shadow") for _ in range(self._entry.concurrency)]
        try:
            yield
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            await self._runs.drain(0)

    @property
    def active_runs(self) -> Iterable[str]:
        """The ids of the shadow and judge runs in progress."""
        return self._runs.active_ids

    def offer(self, answer: UserAnswer) -> None:
        """Queues an answer for comparison if it is in the sample and the queue has room; does not wait."""
        if hash_to_fraction(answer.trace.id) >= self._entry.share:
            return
        try:
            self._queue.put_nowait(answer)
        except asyncio.QueueFull:
            self._metrics.count_comparison(self._experiment.name, "busy")

    async def _process_queue(self) -> None:
        while True:
            outcome = await self._try_compare(await self._queue.get())
            self._metrics.count_comparison(self._experiment.name, outcome)

    async def _try_compare(self, answer: UserAnswer) -> str:
        """Returns the verdict, or the reason for which there is none, as the metrics count it."""
        try:
            return (await self._compare_unless_erased(answer)).verdict
        except NoVerdictError as error:
            log.warning("no verdict on %s: %s", answer.trace.id, _loggable(error, answer))
            return "unclear"
        except ConductorError as error:
            if isinstance(error, ApiError) and error.code == "insufficient_quota":
                return "budget"
            log.warning("the shadow run for %s was refused: %s", answer.trace.id, _loggable(error, answer))
            return "refused"
        except Exception:  # the task must survive to process the rest of the queue
            log.exception("the shadow run for %s failed", answer.trace.id)
            return "error"

    async def _compare_unless_erased(self, answer: UserAnswer) -> Pair:
        """Compares an answer; if that is erased meanwhile, the stored comparison is erased, too."""
        try:
            return await self._compare(answer)
        finally:
            if answer.request.parsed.keep:
                await self._store.erasure.erase_comparison(answer.trace.id)

    async def _compare(self, answer: UserAnswer) -> Pair:
        experiment, request = self._experiment, answer.request
        user_arm: Arm = request.model.arm or "baseline"
        shadow_arm: Arm = "conductor" if user_arm == "baseline" else "baseline"
        changes = {"choices": 1, "state": None, "labels": {SHADOW_OF: answer.trace.id}}
        parsed = request.parsed.model_copy(update=changes)
        shadow = await self._run(experiment.arms[shadow_arm], SHADOW, parsed)
        traces = {user_arm: answer.trace, shadow_arm: shadow}
        baseline, conductor = traces["baseline"], traces["conductor"]
        judgement = await compare_answers(
            AnswerPair(answer.trace.request, baseline=_answer(baseline), conductor=_answer(conductor)),
            judge=self._make_judge(answer) if experiment.judge else None,
            scorer=experiment.scorer,
        )
        pair = Pair(
            run=answer.trace.id,
            shadow=shadow.id,
            experiment=experiment.pinned,
            created=self._store.now(),
            arm=user_arm,
            verdict=judgement.verdict,
            reason=judgement.reason if request.parsed.keep else "",
            baseline_cost=_cost(baseline),
            baseline_seconds=baseline.seconds,
            conductor_cost=_cost(conductor),
            conductor_seconds=conductor.seconds,
        )
        self._store.experiments.add_pair(pair)
        return pair

    def _make_judge(self, answer: UserAnswer) -> Callable[[Request], Awaitable[str]]:
        """Returns a function that asks the experiment's judge, subject to the data class of the user's request."""
        judge, user_request = self._experiment.judge, answer.request
        assert judge is not None
        policy = Policy(data_class=user_request.policy.data_class, data_rules=user_request.policy.data_rules)
        supports_json_schema = judge.conductor.capabilities.json_schema

        async def ask_judge(request: Request) -> str:
            if not supports_json_schema:
                request = request.model_copy(update={"response_format": None})
            parsed = ParsedRequest(
                model=judge.pinned,
                request=request,
                extension=Extension(policy=policy),
                labels={SHADOW_OF: answer.trace.id},
                keep=user_request.parsed.keep,
            )
            trace = await self._run(judge, JUDGE, parsed)
            if trace.completion is None:
                raise NoVerdictError(f"the judge gave no answer: {trace.error}")
            return trace.text

        return ask_judge

    async def _run(self, model: ServedModel, api: str, parsed: ParsedRequest) -> Trace:
        """Runs on the shadow budget and returns the trace, whether there is an answer or not."""
        (request,) = admit(self.budget, model, api, parsed, idempotency_key=None)
        handle = await self._runs.start(request)
        with handle.subscribe():
            try:
                return await handle.result()
            except RunError as error:
                return error.trace


class ShadowRunners(Mapping[str, ShadowRunner]):
    """The shadow runners of all experiments that have one, by name."""

    def __init__(self, experiments: Mapping[str, Experiment], store: Store, metrics: Metrics) -> None:
        self._runners = {
            name: ShadowRunner(experiment, experiment.entry.shadow, store, metrics)
            for name, experiment in experiments.items()
            if experiment.entry.shadow is not None
        }

    def __getitem__(self, name: str) -> ShadowRunner:
        return self._runners[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._runners)

    def __len__(self) -> int:
        return len(self._runners)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """Compares answers while the block runs; see `ShadowRunner.open`."""
        async with AsyncExitStack() as stack:
            for runner in self.values():
                await stack.enter_async_context(runner.open())
            yield

    def offer(self, request: AdmittedRequest, trace: Trace) -> None:
        """Queues a user's answer for comparison; of several choices, only the first."""
        runner = self.get(request.model.name)
        if runner is not None and not request.choice and request.api not in INTERNAL_APIS:
            runner.offer(UserAnswer(request, trace))


def _answer(trace: Trace) -> Message | None:
    return trace.completion.message if trace.completion else None


def _cost(trace: Trace) -> Decimal | None:
    usage = trace.usage
    return None if usage.unpriced_calls else usage.cost


def _ignore_answer(_request: AdmittedRequest, _trace: Trace) -> None:
    """Shadow runs are not shadowed themselves."""


def _loggable(error: ConductorError, answer: UserAnswer) -> str:
    """Returns the error's text, or its type for a request that is not stored: the text may quote the conversation."""
    return str(error) if answer.request.parsed.keep else type(error).__name__
