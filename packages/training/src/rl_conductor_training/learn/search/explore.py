"""Searches for good workflows: proposals of the planner, successive halving, and reuse on similar questions.

Successive halving (Karnin et al. 2013) runs all candidates on a few questions, keeps the better half, and goes on with
more questions. A candidate is kept for its mean score or because it answers questions that no other one does, since
learners can send each question to another workflow. Candidates beyond those are screened: they run only on questions
that no other one answers.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rl_conductor.text.features import dot_product, text_features
from rl_conductor.trace.trace import Call
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.learn.experience import ScoreTable
from rl_conductor_training.learn.runner import Runner
from rl_conductor_training.learn.search.plan import MAX_WORKFLOWS, SearchPlan
from rl_conductor_training.tasks import Sample

PROPOSALS = 8
"""Number of training questions for which the planner proposes a plan."""
MAX_FAILED_PROPOSALS = 2
"""Number of questions without a valid plan after which the planner is not asked again."""
BATCH = 4
"""Number of further candidates that are tried together if budget is left."""
MIN_ROWS = 0.5
"""Share of the questions on which a workflow ran at least that the learners choose from."""
REUSES = 3
"""Number of further workflows that are tried on a question that no workflow answered."""


@dataclass
class Proposals:
    """The plans of the planner, and its calls, from which the cost of a plan is measured."""

    plans: list[tuple[Sample, Workflow]] = field(default_factory=list)
    calls: list[tuple[Call, ...]] = field(default_factory=list)


@dataclass
class Exploration:
    """The result of the search."""

    candidates: list[Workflow]
    """The workflows that ran on all questions of the first round, and those that the screening kept."""
    screened: list[Workflow]
    """The workflows that were tried only where no other one was right."""
    portfolio: list[Workflow]
    """The workflows that the learners choose from: the best ones, and those that complement them."""
    is_complete: bool
    """Whether all planned runs were made."""

    @property
    def tried(self) -> int:
        """Number of workflows that ran on any question."""
        return len({*self.candidates, *self.screened})

    def select_others(self, candidates: Sequence[Workflow]) -> list[Workflow]:
        """Returns those of the candidates that did not run on the first round's questions, untried ones first."""
        others = [workflow for workflow in candidates if workflow not in self.candidates]
        return sorted(others, key=lambda workflow: workflow in self.screened)


@dataclass
class _SearchRuns:
    """Makes the runs of one search, which sees no others, so that a repeated search makes the same choices for free."""

    runner: Runner
    pairs: set[tuple[Workflow, str]] = field(default_factory=set)
    """The workflows and the ids of the questions on which they ran."""

    async def run(self, pairs: Iterable[tuple[Sample, Workflow]]) -> None:
        """Runs each workflow on its question, as far as the budget reaches."""
        pairs = list(pairs)
        self.pairs |= {(workflow, sample.id) for sample, workflow in pairs}
        await self.runner.run_workflows(pairs)

    async def run_round(self, samples: Sequence[Sample], workflows: Iterable[Workflow]) -> None:
        """Runs all workflows question by question, so that a spent budget leaves complete questions."""
        workflows = list(workflows)
        await self.run((sample, workflow) for sample in samples for workflow in workflows)

    def table(self, samples: Sequence[Sample]) -> ScoreTable:
        """Returns the scores of these runs on the questions."""
        rows = score_table(self.runner, samples).rows
        return ScoreTable([row for pair, row in rows.items() if pair in self.pairs], samples)


def exploration_order(samples: Sequence[Sample], seed: int) -> list[Sample]:
    """Shuffles the samples so that any first part of them has each domain in its share.

    The first round runs on few questions. It would drop a workflow that is right in one domain only, if it had no
    question of it.
    """
    order = list(samples)
    random.Random(seed).shuffle(order)  # noqa: S311
    sizes = Counter(sample.domain for sample in order)
    seen: Counter[str] = Counter()
    positions: dict[str, float] = {}
    for sample in order:
        positions[sample.id] = (seen[sample.domain] + 0.5) / sizes[sample.domain]
        seen[sample.domain] += 1
    return sorted(order, key=lambda sample: positions[sample.id])


async def explore(
    runner: Runner,
    order: Sequence[Sample],
    candidates: Sequence[Workflow],
    proposals: Sequence[tuple[Sample, Workflow]],
    plan: SearchPlan,
) -> Exploration:
    """Fills the table of experience with runs on training questions, as far as the budget reaches.

    Args:
        runner: runs workflows within the budget.
        order: the training questions; each round of successive halving takes more of them, from the front.
        candidates: the workflows, the most promising first.
        proposals: plans of the planner for some of the questions.
        plan: the number of candidates and questions of each round.
    """
    singles = [workflow for workflow in candidates if len(workflow.steps) == 1]
    first, *rounds = plan.rounds
    screened = list(candidates[first.candidates : first.candidates + plan.screened])
    candidates = list(candidates[: first.candidates])
    runs = _SearchRuns(runner)
    await runs.run_round(order[: first.questions], dict.fromkeys([*singles, *candidates]))
    candidates += await _screen(runs, order[: first.questions], screened)
    survivors, covered = candidates, first.questions
    for row in rounds:
        if row.candidates < len(survivors):
            survivors = select_workflows(runs.table(order[:covered]), survivors, row.candidates)
        await runs.run_round(order[: row.questions], dict.fromkeys([*singles, *survivors]))
        covered = row.questions
    if plan.workflows == MAX_WORKFLOWS:  # otherwise the caps leave no room for more
        await runs.run(proposals)
        await _reuse(runs, order, candidates)
    return _end_exploration(runner, order, candidates, screened, plan, is_complete=not runner.is_exhausted)


async def _screen(runs: _SearchRuns, samples: Sequence[Sample], workflows: Sequence[Workflow]) -> list[Workflow]:
    """Runs workflows only on questions that no other one answers; returns those that answer any."""
    helpful: list[Workflow] = []
    for start in range(0, len(workflows), BATCH):
        batch = workflows[start : start + BATCH]
        table = runs.table(samples)
        unanswered = [sample for sample in samples if not table.best_rows(sample)]
        await runs.run_round(unanswered, batch)
        table = runs.table(unanswered)
        helpful += [workflow for workflow in batch if table.mean(workflow)]
    return helpful


async def explore_further(
    runner: Runner, order: Sequence[Sample], exploration: Exploration, others: Sequence[Workflow], plan: SearchPlan
) -> Exploration:
    """Tries other candidates than the planned ones, as far as the budget reaches.

    Each batch goes through the same rounds, and what would be selected beside the best so far reaches the next one.
    """
    rivals = exploration.portfolio
    for start in range(0, len(others), BATCH):
        batch = others[start : start + BATCH]
        for row in plan.rounds:
            questions = order[: row.questions]
            await runner.run_workflows((sample, workflow) for sample in questions for workflow in batch)
            selected = select_workflows(score_table(runner, questions), [*rivals, *batch], plan.workflows)
            batch = [workflow for workflow in batch if workflow in selected]
        if runner.is_exhausted:
            others = others[: start + BATCH]
            break
        rivals = [*rivals, *batch]
    candidates = [*exploration.candidates, *others]
    return _end_exploration(runner, order, candidates, exploration.screened, plan, is_complete=True)


def _end_exploration(
    runner: Runner,
    order: Sequence[Sample],
    candidates: list[Workflow],
    screened: list[Workflow],
    plan: SearchPlan,
    *,
    is_complete: bool,
) -> Exploration:
    table = score_table(runner, order[: plan.rounds[-1].questions])
    # After a cut, the survivors of its round have most of their rows; what ran on few questions would take more time.
    frequent = [workflow for workflow in candidates if table.count(workflow) >= MIN_ROWS * len(table.samples)]
    portfolio = select_workflows(table, frequent or candidates, plan.workflows)
    return Exploration(candidates, screened, portfolio, is_complete)


def score_table(runner: Runner, samples: Sequence[Sample], *, with_production: bool = False) -> ScoreTable:
    """Returns the scores of all workflows on these questions.

    Users score production only where they rated an answer, so the means of workflows are comparable without it.
    """
    rows = runner.workflow_rows(samples)
    return ScoreTable([row for row in rows if with_production or row.source == "learn"], samples)


def select_workflows(table: ScoreTable, workflows: Sequence[Workflow], count: int) -> list[Workflow]:
    """Selects workflows that together answer the most questions, then those with the highest mean score.

    Workflows that ran on fewer questions count as wrong on the others.
    """
    scores = {workflow: [score or 0.0 for score in table.scores(workflow)] for workflow in workflows}
    costs = {workflow: table.cost_order(workflow) for workflow in workflows}
    remaining = sorted(workflows, key=lambda workflow: (-sum(scores[workflow]), costs[workflow], len(workflow.steps)))
    selected: list[Workflow] = []
    best = [0.0] * len(table.samples)
    while remaining and len(selected) < count:
        gains = [sum(max(new - old, 0) for new, old in zip(scores[name], best, strict=True)) for name in remaining]
        choice = remaining.pop(gains.index(max(gains)))
        selected.append(choice)
        best = [max(pair) for pair in zip(best, scores[choice], strict=True)]
    return selected


async def propose(runner: Runner, order: Sequence[Sample], count: int = PROPOSALS) -> Proposals:
    """Asks the planner for plans for the first questions, as far as the budget reaches."""
    proposals = Proposals()
    failures = 0
    for sample in order[:count]:
        record = await runner.plan(sample)
        if record is not None:
            proposals.calls.append(record.calls)
        if record is not None and record.source == "planner" and record.workflow is not None:
            proposals.plans.append((sample, record.workflow))
        else:
            failures += 1
        if failures == MAX_FAILED_PROPOSALS:
            break
    return proposals


async def _reuse(runs: _SearchRuns, samples: Sequence[Sample], candidates: Sequence[Workflow]) -> None:
    """Tries workflows that were best on similar questions, on the questions that none has answered rightly yet."""
    table = runs.table(samples)
    features = {sample.id: text_features(sample.question) for sample in samples}
    best_rows = {sample.id: table.best_rows(sample) for sample in samples}
    ranks = {workflow: rank for rank, workflow in enumerate(candidates)}
    pairs = []
    for sample in samples:
        if any(row.score == 1 for row in best_rows[sample.id]):
            continue
        votes: dict[Workflow, float] = {}
        for other in samples:
            weight = dot_product(features[sample.id], features[other.id])
            for row in best_rows[other.id]:
                if row.workflow in ranks and (row.workflow, sample.id) not in table.rows:
                    votes[row.workflow] = votes.get(row.workflow, 0.0) + weight
        best = sorted(votes, key=lambda workflow: (-votes[workflow], ranks[workflow]))[:REUSES]
        pairs += [(sample, workflow) for workflow in best]
    await runs.run(pairs)
