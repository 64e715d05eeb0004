"""`EvolvedInstructions`: the planner's instructions and the workers' cards, evolved by reflection on failed runs.

The search is GEPA's (Agrawal et al., "GEPA: Reflective Prompt Evolution Can Outperform Reinforcement Learning", 2025),
by the `gepa` package: it chooses which candidate to change and which changes to keep. Training questions are for
reflection, validation questions for selection. Every run goes through the same runner as all others, so it is in the
table of experience and within the caps; so are the reflection model's calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from rl_conductor.calls.scope import call_scope
from rl_conductor.conductor import Conductor
from rl_conductor.config.learned_folder import describe_workers
from rl_conductor.errors import ConductorError, ConfigError, LimitError
from rl_conductor.models import Model, model
from rl_conductor.scoring import Sample
from rl_conductor.trace.trace import Call
from rl_conductor_training.learn.learners.base import SearchingLearner
from rl_conductor_training.learn.learners.reflection import PLANNER, Candidate, RunReport, rewrite_text
from rl_conductor_training.learn.runner import Runner
from rl_conductor_training.learn.workspace import REPLIES_FILE
from rl_conductor_training.workers.cached_model import CachedModel

if TYPE_CHECKING:
    from gepa.core.adapter import EvaluationBatch, ProposalFn

T = TypeVar("T")

log = logging.getLogger("rl_conductor_training.learn")

MAX_RUNS = 150
"""Maximum number of planner runs of the search."""
MAX_FAILURES = 3
"""Number of failed calls to the reflection model after which the search ends."""
MINIBATCH = 3
"""Number of training questions of each reflection."""
REPORT = "report"
"""Key of the run in GEPA's records."""
WORKER = "card of "
"""Prefix of the components that are cards."""


class EvolvedInstructions(SearchingLearner):
    """Gives the planner the instructions and cards that answered the most validation questions.

    Nothing is changed unless they answered more of them than the original ones.
    """

    name = "instructions"
    description = "planner with evolved instructions and cards"

    def __init__(self, *, reflection_model: Model | str | None = None, max_runs: int = MAX_RUNS, seed: int = 0) -> None:
        """Creates the learner; nothing is called before `search`.

        Args:
            reflection_model: the model, or its `provider:name`, that rewrites the texts; by default the planner's.
            max_runs: maximum number of planner runs of the search.
            seed: seed of the selection of candidates and questions.

        Raises:
            ConfigError: the `gepa` package is missing.
        """
        _require_gepa()
        self.reflection_model = model(reflection_model) if isinstance(reflection_model, str) else reflection_model
        self.max_runs = max_runs
        self.seed = seed
        self.descriptions: dict[str, str] = {}

    async def search(self, runner: Runner, train: Sequence[Sample], validation: Sequence[Sample]) -> None:
        """Evolves the texts within the runner's budget."""
        reflection_model = runner.conductor.planner.model
        if self.reflection_model is not None:
            cache = runner.experience.path.with_name(REPLIES_FILE)
            reflection_model = CachedModel(self.reflection_model, cache, version="reflection")
        search = _Search(self, runner, reflection_model, asyncio.get_running_loop(), list(validation))
        try:
            await asyncio.to_thread(search.optimize, list(train))
        finally:
            search.stop()
        best = search.best_candidate()
        self.instructions = best[PLANNER]
        self.descriptions = _changed_cards(runner.conductor, best)

    def apply(self, conductor: Conductor) -> Conductor:
        """Returns a copy with the evolved instructions and cards."""
        return apply_texts(conductor, self.instructions, self.descriptions)


def apply_texts(conductor: Conductor, instructions: str, descriptions: dict[str, str]) -> Conductor:
    """Returns a copy with additional instructions for the planner, and with other descriptions of workers."""
    own = conductor.planner.instructions
    planner = replace(conductor.planner, instructions="\n".join(filter(None, (own, instructions))))
    return conductor.replaced(planner=planner, pool=describe_workers(conductor.pool, descriptions))


@dataclass
class _Search:
    """One search. GEPA calls its methods in a thread; the runs and calls happen on the event loop."""

    learner: EvolvedInstructions
    runner: Runner
    reflection_model: Model
    loop: asyncio.AbstractEventLoop
    validation: list[Sample]
    is_over: bool = False
    failures: int = 0
    """Number of calls to the reflection model that failed."""
    pending: Future[Any] | None = None
    """The work that GEPA's thread waits for."""
    propose_new_texts: ProposalFn | None = None
    """Part of GEPA's protocol; `_propose` is passed instead."""

    def __post_init__(self) -> None:
        self.seed = _seed_candidate(self.runner.conductor)
        self.scores: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
        """The score of each candidate on the questions on which it ran."""

    # ------------------------------------------------------------------------- called by GEPA

    def optimize(self, train: list[Sample]) -> None:
        """Runs the search until the budget or the number of runs is used up."""
        from gepa.api import optimize  # noqa: PLC0415  an extra

        try:
            optimize(
                seed_candidate=dict(self.seed),
                trainset=train,
                valset=self.validation,
                adapter=self,
                custom_candidate_proposer=self._propose,
                reflection_minibatch_size=MINIBATCH,
                max_metric_calls=self.learner.max_runs,
                stop_callbacks=lambda _state: self.is_over or self.runner.is_exhausted,
                logger=_Logger(),
                track_best_outputs=False,
                seed=self.learner.seed,
            )
        except _OutOfBudgetError:
            log.debug("the budget of the search is used up")

    def evaluate(
        self, batch: list[Sample], candidate: Candidate, capture_traces: bool = False
    ) -> EvaluationBatch[RunReport, None]:
        """Runs a candidate on some questions.

        Raises:
            _OutOfBudgetError: not all of them fit into the budget.
        """
        from gepa.core.adapter import EvaluationBatch  # noqa: PLC0415

        reports = self._wait(self._run(batch, candidate))
        scores = [report.score for report in reports]
        self.scores.setdefault(tuple(candidate.items()), {}).update(
            {sample.id: score for sample, score in zip(batch, scores, strict=True)}
        )
        return EvaluationBatch(
            outputs=[None] * len(batch), scores=scores, trajectories=reports if capture_traces else None
        )

    def make_reflective_dataset(
        self,
        candidate: Candidate,
        eval_batch: EvaluationBatch[RunReport, None],
        components_to_update: list[str],
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Returns the runs to reflect on, the failed ones first."""
        del candidate
        reports = sorted(eval_batch.trajectories or (), key=lambda report: report.score)
        return {name: [{REPORT: report} for report in reports] for name in components_to_update}

    def _propose(
        self,
        candidate: Candidate,
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: list[str],
    ) -> Candidate:
        reports = {name: [record[REPORT] for record in records] for name, records in reflective_dataset.items()}
        return {name: self._wait(self._rewrite(name, candidate, reports[name])) for name in components_to_update}

    # ------------------------------------------------------------------------ on the event loop

    async def _run(self, batch: Sequence[Sample], candidate: Candidate) -> list[RunReport]:
        conductor = apply_texts(
            self.runner.conductor, candidate[PLANNER], _changed_cards(self.runner.conductor, candidate)
        )
        rows = {row.sample: row for row in await self.runner.run_conductor(batch, "instructions", conductor)}
        if any(sample.id not in rows for sample in batch):
            raise _OutOfBudgetError
        return [RunReport.of(sample, rows[sample.id]) for sample in batch]

    async def _rewrite(self, component: str, candidate: Candidate, reports: Sequence[RunReport]) -> str:
        """Asks the reflection model for a better text.

        Raises:
            ConductorError: it wrote none, or the budget does not allow the call.
        """
        worker = None if component == PLANNER else component.removeprefix(WORKER)
        cards = _cards(self.runner.conductor, candidate)
        calls: list[Call] = []
        try:
            with call_scope(self.runner.budget):
                return await rewrite_text(
                    self.reflection_model, candidate[component], worker, cards, reports, calls=calls
                )
        except LimitError:
            self.runner.is_exhausted = True
            raise
        except ConductorError as error:
            self.failures += 1
            self.is_over = self.failures >= MAX_FAILURES
            log.warning("the reflection model wrote no text: %s", error)
            raise
        finally:
            self.runner.refund_cached(calls)

    # --------------------------------------------------------------------------------- results

    def best_candidate(self) -> Candidate:
        """Returns the candidate with the highest mean score on all validation questions; of equal ones the first."""
        ids = [sample.id for sample in self.validation]
        means = {
            texts: sum(scores[name] for name in ids)
            for texts, scores in self.scores.items()
            if all(name in scores for name in ids)
        }
        best = max(means, key=lambda texts: means[texts], default=tuple(self.seed.items()))
        return dict(best)

    def stop(self) -> None:
        """Ends the search; a run in progress is cancelled."""
        self.is_over = True
        if self.pending is not None:
            self.pending.cancel()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the event loop and waits for it in this thread."""
        if self.is_over:
            work.close()
            raise _OutOfBudgetError
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        self.pending = future
        return future.result()


class _OutOfBudgetError(Exception):
    """The budget of the search is used up, or it was stopped."""


class _Logger:
    """Receives GEPA's messages, which quote models; by default GEPA prints them."""

    def log(self, message: str) -> None:
        log.debug("%s", message)


def _seed_candidate(conductor: Conductor) -> Candidate:
    """Returns the texts to evolve: instructions in addition to the planner's own, and the cards that it sees."""
    cards = conductor.pool.values() if conductor.planner.roster == "cards" else ()
    return {PLANNER: ""} | {f"{WORKER}{worker.name}": worker.card.description for worker in cards}


def _cards(conductor: Conductor, candidate: Candidate) -> dict[str, str]:
    """Returns the description of each worker in a candidate."""
    return {name: candidate.get(f"{WORKER}{name}", worker.card.description) for name, worker in conductor.pool.items()}


def _changed_cards(conductor: Conductor, candidate: Candidate) -> dict[str, str]:
    cards = _cards(conductor, candidate)
    return {name: text for name, text in cards.items() if text != conductor.pool[name].card.description}


def _require_gepa() -> None:
    if find_spec("gepa") is None:
        raise ConfigError("learning instructions needs gepa: pip install 'rl-conductor-training[gepa]'")
