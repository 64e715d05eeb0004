"""Self-consistency and best-of-N: many samples of one worker, within the mean spending of another system.

Self-consistency (arXiv 2203.11171, section 2) takes the majority answer. Best-of-N lets the worker itself choose among
its samples (arXiv 2311.17311, section 3), because there is no verifier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from rl_conductor._internal.formatting import counted
from rl_conductor.errors import ConfigError
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.prompting.subtasks import ANSWER
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Sampling, Usage
from rl_conductor.workflow.workflow import Step, Workflow
from rl_conductor_training.bench.context import BenchContext
from rl_conductor_training.bench.results import SampleResult
from rl_conductor_training.bench.systems.base import Reply, System, SystemEntry
from rl_conductor_training.bench.systems.single_model import select_best_worker
from rl_conductor_training.tasks import Sample

CHOOSE = """The replies above answer the same task. Decide which of them is right, by what most of them agree on and \
by checking, and give its answer again, complete and in the form that the task asks for."""


class BudgetedSampling(SystemEntry):
    """Settings that both systems share: the worker, its sampling and the budget."""

    like: str
    """The system whose mean spending per question is the budget; it has to run before this one."""
    spend: Literal["tokens", "usd"] = "tokens"
    """Unit of the budget."""
    worker: str | None = None
    """`None` selects the best single worker."""
    temperature: float = Field(default=0.7, gt=0)
    max_samples: int = Field(default=64, ge=1)
    """Maximum number of samples per question."""

    def spending(self, usage: Usage) -> float:
        """Returns the spending in the unit of the budget."""
        return float(usage.cost) if self.spend == "usd" else float(usage.total_tokens)

    def budget(self, context: BenchContext) -> float:
        """Returns the budget per question: the mean spending of the system `like`."""
        if self.like not in context.finished:
            systems = ", ".join(context.finished)
            raise ConfigError(f"like = {self.like!r} names no system that ran before; there are {systems}")
        return self.mean_spending(context.finished[self.like])

    def mean_spending(self, results: Sequence[SampleResult]) -> float:
        """Returns the mean spending per question."""
        return sum(self.spending(result.usage) for result in results) / len(results)

    def seeds(self, context: BenchContext, repeat: int) -> range:
        """Returns a seed for each sample, disjoint between repetitions."""
        first = (context.seed + repeat) * self.max_samples
        return range(first, first + self.max_samples)

    def fits_budget(self, budget: float, spending: float, count: int) -> bool:
        """Whether one more sample of average cost fits the budget; the first one always does."""
        return count == 0 or (count < self.max_samples and spending + spending / count <= budget)


class SelfConsistency(BudgetedSampling):
    """Takes the majority answer of the samples."""

    kind: Literal["self-consistency"]

    async def build(self, name: str, context: BenchContext) -> list[System]:
        """Builds the system with the budget of `like`."""
        worker = self.worker or await select_best_worker(context)
        budget = self.budget(context)

        async def answer(sample: Sample, repeat: int) -> Reply:
            traces: list[Trace] = []
            for seed in self.seeds(context, repeat):
                spending = sum(self.spending(trace.usage) for trace in traces)
                if not self.fits_budget(budget, spending, len(traces)):
                    break
                sampling = Sampling(temperature=self.temperature, seed=seed)
                traces.append(await context.run(sample.question, single=worker, sampling=sampling))
            answers = [await self._extract_answer(context, sample, trace) for trace in traces]
            text = majority_reply(answers, [trace.text for trace in traces])
            return Reply(text, tuple(traces), f"{len(traces)} samples")

        description = f"{worker} sampled for what {self.like!r} spends ({self.spend}), majority (arXiv 2203.11171)"
        identity = f"{self.identity} {worker} {budget:.6g}"
        return [System(name=name, description=description, identity=identity, answer=answer)]

    @staticmethod
    async def _extract_answer(context: BenchContext, sample: Sample, trace: Trace) -> str | None:
        """Extracts the answer with the task's scorer, ignoring whether it is right."""
        return (await context.task.score(sample, trace.text)).answer if trace.text else None


def majority_reply(answers: Sequence[str | None], replies: Sequence[str]) -> str:
    """Returns the first reply with the most frequent answer, or the first reply if none has an answer."""
    normalized = [None if answer is None else " ".join(answer.casefold().split()) for answer in answers]
    votes = Counter(answer for answer in normalized if answer)
    if not votes:
        return next(filter(None, replies), "")
    return replies[normalized.index(votes.most_common(1)[0][0])]


class BestOfN(BudgetedSampling):
    """Lets the worker choose the best of its samples."""

    kind: Literal["best-of-n"]

    async def build(self, name: str, context: BenchContext) -> list[System]:
        """Builds the system, after measuring the cost of samples and choice on the calibration task."""
        worker = self.worker or await select_best_worker(context)
        budget = self.budget(context)
        pilots = [self._build_best_of(f"{name}.{count}", worker, count, context) for count in (2, 3)]
        cost_of_two, cost_of_three = [
            self.mean_spending((await context.evaluate([pilot]))[pilot.name]) for pilot in pilots
        ]
        count = self.count_samples(budget, cost_of_two, cost_of_three)
        return [self._build_best_of(name, worker, count, context)]

    def _build_best_of(self, name: str, worker: str, count: int, context: BenchContext) -> System:
        """Builds the system that takes the best of `count` samples."""
        plan = self.workflow(worker, count)

        async def answer(sample: Sample, repeat: int) -> Reply:
            clones = self.clones(context.pool[worker], self.seeds(context, repeat)[:count])
            return Reply.from_trace(await context.run(sample.question, workflow=plan, pool=clones))

        samples = counted(count, "sample")
        description = f"{worker}'s own choice among {samples}, for what {self.like!r} spends (arXiv 2311.17311)"
        identity = f"{self.identity} {plan.model_dump_json()}"
        return System(name=name, description=description, identity=identity, answer=answer)

    def count_samples(self, budget: float, cost_of_two: float, cost_of_three: float) -> int:
        """Returns the number of samples that fits the budget, including the choice among them; at least one.

        Args:
            budget: budget per question.
            cost_of_two: cost of the best of two. The choice reads all samples, so each adds more than its own cost.
            cost_of_three: cost of the best of three.
        """
        if budget < cost_of_two:
            return 1
        cost_per_sample = cost_of_three - cost_of_two
        return (
            min(self.max_samples, 2 + int((budget - cost_of_two) / cost_per_sample))
            if cost_per_sample > 0
            else self.max_samples
        )

    def workflow(self, worker: str, count: int) -> Workflow:
        """Builds steps for the samples, by copies of the worker, and a step that chooses among several."""
        steps = [Step(subtask=ANSWER, worker=copy_name(worker, number)) for number in range(count)]
        if count > 1:
            steps.append(Step(subtask=CHOOSE, worker=worker, access=frozenset(range(count))))
        return Workflow(steps=tuple(steps))

    def clones(self, worker: Worker, seeds: Sequence[int]) -> WorkerPool:
        """Returns a pool of the worker and its copies, each with a seed of its own."""
        copies = []
        for number, seed in enumerate(seeds):
            name = copy_name(worker.name, number)
            sampling = worker.sampling.model_copy(update={"temperature": self.temperature, "seed": seed})
            card = worker.card.model_copy(update={"name": name})
            copies.append(replace(worker, name=name, sampling=sampling, card=card))
        return WorkerPool([worker, *copies])


def copy_name(worker: str, number: int) -> str:
    """Names a copy of a worker."""
    return f"{worker} {number}"
