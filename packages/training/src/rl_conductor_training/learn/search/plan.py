"""Plans a search that fits the caps: how many workflows run on how many questions, with a reserve for the proof."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import NamedTuple

from rl_conductor._internal.formatting import counted
from rl_conductor._internal.jsonl import read_value, write_value
from rl_conductor.types import Value
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.workflow import Workflow
from rl_conductor_training.learn.search.costs import CallCosts, Cost, step_keys

MEASURING, PROPOSING = 0.5, 0.6
"""Shares of the caps that are spent at most when the first measurements and the planner's proposals end."""
FIRST_QUESTIONS = 6
"""Minimum number of questions of the first round of successive halving."""
GROWTH = 2
"""Factor by which the questions grow and the candidates shrink from round to round."""
MAX_WORKFLOWS = 6
"""Maximum number of workflows that the learners choose from."""
MIN_SEARCH = 0.2
"""Minimum share of the remaining caps for a stage, also if not even the cheapest search fits."""
MIN_CHAINS = 3
"""Minimum number of candidates with several steps."""
SAFETY = 1.2
"""Factor on the reserved costs, because measured means are rough."""
LEARNERS_SEARCH = 0.15
"""Share of the remaining caps for learners with a search of their own, if not everything fits."""
LEARNERS_TRAINING = 0.3
"""Share of the time for learners that train, likewise; training takes long on a CPU."""
SCREENING = 0.3
"""Share of the exploration's budget for workflows that are tried only where no other one is right."""
UNANSWERED = 0.5
"""Expected share of the first round's questions on which no workflow is right."""
STEPS_PER_WORKFLOW = 1.6
"""Expected number of a selected workflow's steps that it shares with no other one."""
CAP_NAMES = {"usd": "the dollars", "tokens": "the tokens", "calls": "the calls", "seconds": "the time"}
_UP = Context(prec=2, rounding=ROUND_CEILING)
"""Rounds dollars up, so that the caps that are named suffice."""


class SearchLevel(NamedTuple):
    """Settings that decide how thorough a search is."""

    workflows: int
    """Number of workflows that the learners choose from."""
    tries_planners: bool
    """Whether learners that call a planner are tried."""
    questions: float
    """Share of the training questions that are used."""


LEVELS = (
    SearchLevel(MAX_WORKFLOWS, tries_planners=True, questions=1.0),
    SearchLevel(4, tries_planners=True, questions=1.0),
    SearchLevel(3, tries_planners=True, questions=1.0),
    SearchLevel(3, tries_planners=False, questions=1.0),
    SearchLevel(2, tries_planners=False, questions=1.0),
    SearchLevel(2, tries_planners=False, questions=0.5),
)
"""From the most thorough search to the cheapest one."""


class SearchRound(Value):
    """A round of successive halving."""

    candidates: int
    questions: int


class SearchPlan(Value):
    """The sizes of a search, and the shares of the caps at which its stages end."""

    rounds: tuple[SearchRound, ...]
    screened: int = 0
    """Number of further workflows that are tried on the first round's questions on which no other one is right."""
    workflows: int
    """Number of workflows that the learners choose from."""
    tries_planners: bool
    """Whether learners that call a planner are tried."""
    exploring: float
    """Share at which the exploration ends."""
    validating: float
    """Share at which the validation of the workflows ends."""
    searching: float
    """Share at which the learners' own searches end."""
    choosing: float
    """Share at which the validation of the learners ends; the rest is for the proof."""
    needed: Cost
    """Expected cost of the whole run with this plan."""
    thorough: Cost
    """Expected cost with all candidates, questions and learners."""
    began: Cost = Cost()
    """Spending when the plan was made."""
    exploration: Cost = Cost()
    """Expected cost of the exploration."""
    key: str = ""
    """Identifies the caps and workers that the plan was made for."""

    @property
    def is_smaller(self) -> bool:
        """Whether the caps left no room for a thorough search."""
        return self.needed.tokens < self.thorough.tokens

    @property
    def summary(self) -> str:
        """The rounds in words."""
        first, *others = [f"{row.candidates} workflows on {row.questions} questions" for row in self.rounds]
        screening = [f"{self.screened} more where none of them is right"] if self.screened else []
        rounds = ", then ".join([first, *screening, *others])
        return rounds if self.tries_planners else f"{rounds}; no learner with a planner"

    @property
    def runs(self) -> int:
        """Number of runs of the rounds, without those that depend on the results."""
        pairs = pairwise((SearchRound(candidates=0, questions=0), *self.rounds))
        return sum(row.candidates * (row.questions - before.questions) for before, row in pairs)


@dataclass(frozen=True)
class SearchSizes:
    """The numbers that a plan depends on."""

    candidates: Sequence[Workflow]
    """The candidates in the order of their priority."""
    singles: Sequence[Workflow]
    train: int
    validation: int
    heldout: int
    learner_runs: int = 0
    """Maximum number of runs of learners with a search of their own."""
    training_seconds: float = 0.0
    """Seconds of their work without any call."""


class Reserves(NamedTuple):
    """The expected costs of the stages after exploration."""

    validation: Cost
    """Cost of the workflows on the validation questions."""
    search: Cost
    """Cost of the learners' own searches, as far as they get."""
    choice: Cost
    """Cost of the learners on the validation questions."""
    proof: Cost


def halving_rounds(candidates: int, questions: int, *, survivors: int = MAX_WORKFLOWS) -> list[tuple[int, int]]:
    """Returns the number of candidates and of questions of each round of successive halving."""
    rounds = []
    count = min(questions, max(FIRST_QUESTIONS, ceil(questions / 4)))
    while True:
        rounds.append((candidates, count))
        if count == questions:
            return rounds
        candidates = min(candidates, max(survivors, ceil(candidates / GROWTH)))
        count = min(questions, count * GROWTH)


def plan_search(sizes: SearchSizes, costs: CallCosts, limits: Limits, spending: Cost) -> SearchPlan:
    """Returns the most thorough search that fits the caps; the cost of the proof is reserved first.

    Where not everything fits, the learners' own searches get a limited share, so that the exploration is not starved.
    If not even the cheapest search fits, that one is returned, and the caps will end it early.
    """
    thorough = plan = _plan_level(sizes, costs, LEVELS[0], Limits(), spending)
    has_room = thorough.needed.share(limits) <= 1
    for level in LEVELS:
        plan = _plan_level(sizes, costs, level, limits, spending, has_room=has_room)
        min_candidates = min(len(sizes.candidates), len(sizes.singles) + 2 * level.workflows)
        if plan.needed.share(limits) <= 1 and plan.rounds[0].candidates >= min_candidates:
            break
    return plan.model_copy(update={"thorough": thorough.needed})


def load_plan(path: Path, create: SearchPlan, key: str) -> SearchPlan:
    """Returns the plan that an interrupted run stored in `path` under the same key, or else stores `create`."""
    if path.exists() and (stored := read_value(path, SearchPlan)).key == key:
        return stored
    return store_plan(path, create, key)


def store_plan(path: Path, plan: SearchPlan, key: str) -> SearchPlan:
    """Stores the plan in `path` under this key, and returns it as it is stored."""
    plan = plan.model_copy(update={"key": key})
    write_value(path, plan)
    return plan


def describe_need(needed: Cost, limits: Limits) -> str:
    """Says which caps a thorough run needs."""
    return f"a thorough one takes about {describe_cost(needed, limits)}, or more"


def describe_cost(needed: Cost, limits: Limits) -> str:
    """Lists a cost in the units of the caps, rounded up."""
    parts = [
        *([f"${_UP.create_decimal_from_float(needed.usd):,f}"] if limits.usd is not None else []),
        *([f"{ceil(needed.tokens):,} tokens"] if limits.tokens is not None else []),
        *([counted(ceil(needed.calls), "call")] if limits.calls is not None else []),
        *([counted(ceil(needed.seconds / 60), "minute")] if limits.seconds is not None else []),
    ]
    return " and ".join(parts)


def _plan_level(
    sizes: SearchSizes, costs: CallCosts, level: SearchLevel, limits: Limits, spending: Cost, *, has_room: bool = True
) -> SearchPlan:
    """Plans a search of this level; `has_room` if all that the learners search for themselves fits as well."""
    spending_share = spending.share(limits)
    reserves = _reserves(sizes, costs, level)
    if not has_room:
        room = max(1 - spending_share, 0.0) * _learners_share(sizes)
        reserves = reserves._replace(search=_within(reserves.search, room, limits))
    exploring = _end_stage(spending_share, 1.0, sum(reserves, Cost()).share(limits))
    choosing = _end_stage(exploring, 1.0, reserves.proof.share(limits))
    # Without a search of their own, the learners are tried with whatever validation leaves.
    searches = level.tries_planners and (sizes.learner_runs or sizes.training_seconds)
    after_validation = reserves.search + reserves.choice if searches else Cost()
    validating = _end_stage(exploring, choosing, after_validation.share(limits))
    searching = _end_stage(validating, choosing, reserves.choice.share(limits))
    rounds, screened, search = _fit_rounds(sizes, costs, level, limits, free=exploring - spending_share)
    return SearchPlan(
        rounds=tuple(SearchRound(candidates=candidates, questions=count) for candidates, count in rounds),
        screened=screened,
        workflows=level.workflows,
        tries_planners=level.tries_planners,
        exploring=exploring,
        validating=validating,
        searching=searching,
        choosing=choosing,
        needed=spending + search + sum(reserves, Cost()),
        began=spending,
        exploration=search,
        thorough=Cost(),
    )


def _end_stage(start: float, end: float, reserved: float) -> float:
    """Returns the share of the caps at which a stage ends: `reserved` before `end`, but not too soon after `start`."""
    return min(max(end - reserved, start + MIN_SEARCH * (end - start)), 1.0)


def _learners_share(sizes: SearchSizes) -> float:
    """Returns the share of the remaining caps for the learners' own searches, if not everything fits."""
    return LEARNERS_SEARCH + (LEARNERS_TRAINING if sizes.training_seconds else 0.0)


def _within(cost: Cost, room: float, limits: Limits) -> Cost:
    """Returns the part of a cost that fits `room`, a share of the caps."""
    share = cost.share(limits)
    return cost * (room / share) if share > room else cost


def _reserves(sizes: SearchSizes, costs: CallCosts, level: SearchLevel) -> Reserves:
    """Returns the expected cost of the stages after exploration."""
    selected = costs.of_workflows(sizes.singles) + costs.mean_step * (level.workflows * STEPS_PER_WORKFLOW)
    learner = costs.planned_run if level.tries_planners else Cost()
    return Reserves(
        validation=selected * (sizes.validation * SAFETY),
        search=learner * sizes.learner_runs + Cost(seconds=sizes.training_seconds if level.tries_planners else 0.0),
        choice=learner * (sizes.validation * SAFETY),
        proof=(selected + costs.planned_run + learner) * (sizes.heldout * SAFETY),
    )


def _fit_rounds(
    sizes: SearchSizes, costs: CallCosts, level: SearchLevel, limits: Limits, *, free: float
) -> tuple[list[tuple[int, int]], int, Cost]:
    """Returns the largest rounds that fit `free`, how many more candidates are screened, and the cost of both."""
    questions = max(1, round(sizes.train * level.questions))
    fewest = len(sizes.singles) + MIN_CHAINS
    for count in range(len(sizes.candidates), 0, -1):
        rounds = halving_rounds(count, questions, survivors=level.workflows)
        cost = _rounds_cost(sizes, costs, rounds)
        budget = free if count == len(sizes.candidates) else free * (1 - SCREENING)
        if cost.share(limits) <= budget or count <= fewest:
            break
    for screened in range(len(sizes.candidates) - count, 0, -1):
        screening = _screening_cost(sizes, costs, rounds[0], screened)
        if (cost + screening).share(limits) <= free:
            return rounds, screened, cost + screening
    return rounds, 0, cost


def _screening_cost(sizes: SearchSizes, costs: CallCosts, first: tuple[int, int], screened: int) -> Cost:
    """Returns the cost of the steps that the screened candidates do not share with those of the first round."""
    count, questions = first
    steps = {key for workflow in sizes.candidates[:count] for key, _ in step_keys(workflow)}
    further = dict(pair for workflow in sizes.candidates[count : count + screened] for pair in step_keys(workflow))
    total = sum((costs.of_worker(worker) for key, worker in further.items() if key not in steps), Cost())
    return total * (questions * UNANSWERED)


def _rounds_cost(sizes: SearchSizes, costs: CallCosts, rounds: Sequence[tuple[int, int]]) -> Cost:
    total = costs.of_workflows(sizes.candidates[: rounds[0][0]]) * rounds[0][1]
    singles = costs.of_workflows(sizes.singles)
    for (_, before), (size, questions) in pairwise(rounds):
        total += (singles + costs.mean_step * (size * STEPS_PER_WORKFLOW)) * (questions - before)
    return total
