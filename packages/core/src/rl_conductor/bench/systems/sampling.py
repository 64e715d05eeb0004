"""One worker asked many times, for as much as another system spends: self-consistency and best-of-N.

Self-consistency (arXiv 2203.11171, section 2) takes the answer that most samples agree on. Best-of-N lets the worker
itself choose among its samples (arXiv 2311.17311, section 3), since no verifier knows the right answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from rl_conductor.amounts import counted
from rl_conductor.bench.arena import Arena
from rl_conductor.bench.rows import Row, check_learnable
from rl_conductor.bench.systems.alone import best_single
from rl_conductor.bench.systems.base import Reply, System, SystemEntry
from rl_conductor.errors import ConfigError
from rl_conductor.pool import Worker, WorkerPool
from rl_conductor.staffing import ANSWER
from rl_conductor.tasks import Sample
from rl_conductor.trace import Trace
from rl_conductor.types import Sampling, Usage
from rl_conductor.workflow import Step, Workflow

CHOOSE = """The replies above answer the same task. Decide which of them is right, by what most of them agree on and \
by checking, and give its answer again, complete and in the form that the task asks for."""


class Sampled(SystemEntry):
    """What both share: who is asked, how, and for how much."""

    like: str
    """The system whose mean spending a question may be spent; it must stand before this one."""
    spend: Literal["tokens", "usd"] = "tokens"
    """What is held equal."""
    worker: str | None = None
    """`None` takes the best single one."""
    temperature: float = Field(default=0.7, gt=0)
    most: int = Field(default=64, ge=1)
    """Most samples of a question, whatever is left to spend."""

    def amount(self, usage: Usage) -> float:
        """What was spent, in what is held equal."""
        return float(usage.cost) if self.spend == "usd" else float(usage.total_tokens)

    def budget(self, arena: Arena) -> float:
        """What a question may cost."""
        if self.like not in arena.ran:
            raise ConfigError(f"like = {self.like!r} names no system that ran before; there are {', '.join(arena.ran)}")
        return self.mean(arena.ran[self.like])

    def mean(self, rows: Sequence[Row]) -> float:
        """What a question cost on average."""
        return sum(self.amount(row.usage) for row in rows) / len(rows)

    def seeds(self, arena: Arena, repeat: int) -> range:
        """A seed for each sample, none of them shared with another repetition."""
        first = (arena.seed + repeat) * self.most
        return range(first, first + self.most)

    def allowed(self, budget: float, spent: float, drawn: int) -> bool:
        """Whether one more sample of the usual size fits, the first one always."""
        return drawn == 0 or (drawn < self.most and spent + spent / drawn <= budget)


class SelfConsistency(Sampled):
    """The answer that most samples agree on."""

    kind: Literal["self-consistency"]

    async def ready(self, name: str, arena: Arena) -> list[System]:
        """The system."""
        worker = self.worker or await best_single(arena)
        budget = self.budget(arena)

        async def answer(sample: Sample, repeat: int) -> Reply:
            traces: list[Trace] = []
            for seed in self.seeds(arena, repeat):
                spent = sum(self.amount(trace.usage) for trace in traces)
                if not self.allowed(budget, spent, len(traces)):
                    break
                sampling = Sampling(temperature=self.temperature, seed=seed)
                traces.append(await arena.run(sample.question, single=worker, sampling=sampling))
            answers = [await self._answer(arena, sample, trace) for trace in traces]
            return Reply(voted(answers, [trace.text for trace in traces]), tuple(traces), f"{len(traces)} samples")

        about = f"{worker} sampled for what {self.like!r} spends ({self.spend}), majority (arXiv 2203.11171)"
        return [System(name=name, about=about, identity=f"{self.identity} {worker} {budget:.6g}", answer=answer)]

    @staticmethod
    async def _answer(arena: Arena, sample: Sample, trace: Trace) -> str | None:
        """The answer as the scorer finds it in the reply; whether it is right is not looked at."""
        return (await arena.task.score(sample, trace.text)).answer if trace.text else None


def voted(answers: Sequence[str | None], replies: Sequence[str]) -> str:
    """The first reply with the answer that most have; the first reply of all there is when none has any."""
    found = [None if answer is None else " ".join(answer.casefold().split()) for answer in answers]
    votes = Counter(answer for answer in found if answer)
    if not votes:
        return next(filter(None, replies), "")
    return replies[found.index(votes.most_common(1)[0][0])]


class BestOfN(Sampled):
    """The sample that the worker itself finds best."""

    kind: Literal["best-of-n"]

    async def ready(self, name: str, arena: Arena) -> list[System]:
        """The system."""
        worker = self.worker or await best_single(arena)
        budget = self.budget(arena)
        two, three = [await self.cost(self.sampled(f"{name}.{few}", worker, few, arena), arena) for few in (2, 3)]
        return [self.sampled(name, worker, self.count(budget, two, three), arena)]

    def sampled(self, name: str, worker: str, count: int, arena: Arena) -> System:
        """The best of `count` samples."""
        plan = self.workflow(worker, count)

        async def answer(sample: Sample, repeat: int) -> Reply:
            clones = self.clones(arena.pool[worker], self.seeds(arena, repeat)[:count])
            return Reply.of(await arena.run(sample.question, workflow=plan, pool=clones))

        among = counted(count, "sample")
        about = f"{worker}'s own choice among {among}, for what {self.like!r} spends (arXiv 2311.17311)"
        return System(name=name, about=about, identity=f"{self.identity} {plan.model_dump_json()}", answer=answer)

    async def cost(self, system: System, arena: Arena) -> float:
        """What a calibration question costs on average."""
        rows = await arena.record(system, arena.calibration)
        check_learnable(rows, arena.calibration.name)
        return self.mean(rows)

    def count(self, budget: float, two: float, three: float) -> int:
        """How many samples the budget allows, with choosing among them; at least one, which needs no choosing.

        Args:
            budget: what a question may cost.
            two: what the best of two costs. Choosing reads all samples, so that each costs more than drawing it.
            three: what the best of three costs.
        """
        if budget < two:
            return 1
        more = three - two
        return min(self.most, 2 + int((budget - two) / more)) if more > 0 else self.most

    def workflow(self, worker: str, count: int) -> Workflow:
        """Samples by copies of the worker, and its choice if there is one to make."""
        steps = [Step(subtask=ANSWER, worker=copy_of(worker, number)) for number in range(count)]
        if count > 1:
            steps.append(Step(subtask=CHOOSE, worker=worker, access=frozenset(range(count))))
        return Workflow(steps=tuple(steps))

    def clones(self, worker: Worker, seeds: Sequence[int]) -> WorkerPool:
        """The worker, and copies of it that draw at random, each with a seed of its own."""
        copies = []
        for number, seed in enumerate(seeds):
            name = copy_of(worker.name, number)
            sampling = worker.sampling.model_copy(update={"temperature": self.temperature, "seed": seed})
            card = worker.card.model_copy(update={"name": name})
            copies.append(replace(worker, name=name, sampling=sampling, card=card))
        return WorkerPool([worker, *copies])


def copy_of(worker: str, number: int) -> str:
    """What a copy of a worker is called."""
    return f"{worker} {number}"
