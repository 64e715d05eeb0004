"""Experiments: a name behind which two arms can answer, the baseline and a conductor that may replace it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property

from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConfigError
from rl_conductor.guardrails.base import Guardrail
from rl_conductor.pool.pool import WorkerPool, close_all
from rl_conductor.pool.pool_file import PoolFile, WorkerEntry
from rl_conductor.scoring import Scorer
from rl_conductor.workflow.limits import Limits
from rl_conductor_server.catalog import ModelCatalog, ServedModel, naming_table
from rl_conductor_server.errors import ApiError
from rl_conductor_server.experiments.judge import load_scorer
from rl_conductor_server.settings import ExperimentEntry
from rl_conductor_server.store import Arm


@dataclass(frozen=True)
class Experiment:
    """A table `[experiments.NAME]` of the settings, with its models."""

    entry: ExperimentEntry
    baseline: ServedModel
    conductor: ServedModel
    judge: ServedModel | None
    scorer: Scorer | None

    @property
    def name(self) -> str:
        """The name that clients request; it stays the same across releases."""
        return self.baseline.name

    @property
    def pinned(self) -> str:
        """The name with the release date, which identifies the results."""
        return self.baseline.pinned

    @cached_property
    def arms(self) -> Mapping[Arm, ServedModel]:
        """The model of each arm."""
        return {"baseline": self.baseline, "conductor": self.conductor}


class Experiments(Mapping[str, Experiment]):
    """All experiments of the server by name."""

    def __init__(self, entries: Mapping[str, ExperimentEntry], catalog: ModelCatalog) -> None:
        """Builds the experiments of the settings over the models of the catalog.

        Raises:
            ConfigError: a name is taken, a model or scorer does not exist, or the price of a model is unknown.
        """
        self._experiments = {name: _build_experiment(name, entry, catalog) for name, entry in entries.items()}
        self.catalog = ModelCatalog([*catalog, *(experiment.baseline for experiment in self.values())])
        """All models that clients can request, with the baseline standing for its experiment."""

    def __getitem__(self, name: str) -> Experiment:
        return self._experiments[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._experiments)

    def __len__(self) -> int:
        return len(self._experiments)

    def find(self, name: str) -> Experiment:
        """Returns the experiment of this name.

        Raises:
            ApiError: there is none.
        """
        if name not in self._experiments:
            names = ", ".join(self._experiments) or "none"
            raise ApiError(f"no experiment {name!r}; there are: {names}", status=404, code="experiment_not_found")
        return self._experiments[name]

    def select_model(self, arm: Arm | None, model: ServedModel) -> ServedModel:
        """Returns the model of an arm if `model` is an experiment, else `model` itself."""
        experiment = self._experiments.get(model.name)
        return model if experiment is None or arm is None else experiment.arms[arm]

    async def aclose(self) -> None:
        """Closes all models of the experiments and of the catalog."""
        judges = [experiment.judge.conductor for experiment in self.values() if experiment.judge is not None]
        await close_all([*judges, self.catalog])


def _build_experiment(name: str, entry: ExperimentEntry, catalog: ModelCatalog) -> Experiment:
    models = {model.name: model for model in catalog}
    if name in models:
        raise ConfigError(f"experiments.{name}: a model of this server has this name; choose another")
    if entry.conductor not in models:
        raise ConfigError(
            f"experiments.{name}.conductor={entry.conductor!r} is not a model of this server; "
            f"write one of {', '.join(models)}"
        )
    shadow = entry.shadow
    guardrails = models[entry.conductor].conductor.config.guardrails
    baseline = _single_model(name, "baseline", entry.baseline, entry.released, guardrails)
    # The judge gets no prompt that a worker would not get. What it reads has passed the other stages already.
    prompt_guardrails = [_at_prompts(guardrail) for guardrail in guardrails if "prompt" in guardrail.stages]
    judge = None
    if shadow and shadow.judge:
        judge = _single_model(name, None, shadow.judge, entry.released, prompt_guardrails)
    conductor = replace(models[entry.conductor], name=name, released=entry.released, arm="conductor")
    experiment = Experiment(
        entry=entry,
        baseline=replace(baseline, other_conductor=conductor.conductor),
        conductor=replace(conductor, other_conductor=baseline.conductor),
        judge=judge,
        scorer=load_scorer(shadow.scorer) if shadow and shadow.scorer else None,
    )
    if shadow and shadow.usd is not None:
        _check_prices(experiment)
    return experiment


def _at_prompts(guardrail: Guardrail) -> Guardrail:
    """Returns a copy that checks prompts alone."""
    limited = copy(guardrail)
    limited.stages = frozenset({"prompt"})
    return limited


def _check_prices(experiment: Experiment) -> None:
    """Raises `ConfigError` if the price of a model is unknown: a budget in dollars would refuse every shadow run."""
    for served in filter(None, (experiment.baseline, experiment.judge)):  # the first has the models of both arms
        if served.unpriced:
            raise ConfigError(
                f"experiments.{experiment.name}.shadow.usd can't be enforced because the price of {served.unpriced[0]} "
                "is unknown; set its price, or write tokens instead of usd"
            )


def _single_model(
    name: str, arm: Arm | None, entry: WorkerEntry, released: date, guardrails: Sequence[Guardrail] = ()
) -> ServedModel:
    """Serves a model as it is: a pool of one worker and plans of one step need no planner."""
    with naming_table(f"experiments.{name}"):
        pool = WorkerPool(PoolFile(workers={arm or "judge": entry}).build())
        (worker,) = pool.values()
        conductor = Conductor(worker.model, pool, limits=Limits(steps=1, rounds=1), guardrails=guardrails, name=name)
    return ServedModel(name, released, conductor, arm)
