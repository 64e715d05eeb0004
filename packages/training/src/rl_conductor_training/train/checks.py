"""Checks a training run before torch is imported, which takes many seconds. Nothing is called or written."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from rl_conductor.errors import ConfigError
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.workflow.limits import Limits
from rl_conductor_training.output_folder import check_folder
from rl_conductor_training.spending import check_prices
from rl_conductor_training.train.config import Reporter, TrainConfig
from rl_conductor_training.train.run_dir import RunDir
from rl_conductor_training.train.setup import TrainingSetup


def check_run(config: TrainConfig, output: Path, pool: WorkerPool, limits: Limits) -> None:
    """Checks the trackers, the run directory, the workers and the questions.

    Raises:
        ConfigError: one of them can't be used.
    """
    check_trackers(config.keep.report_to)
    check_folder(output)
    RunDir(output).ensure_same_config(config)
    check_prices(pool, limits)
    TrainingSetup(config, pool).load_questions()


def check_trackers(trackers: Iterable[Reporter]) -> None:
    """Checks that the packages of experiment trackers are installed.

    Raises:
        ConfigError: one is not.
    """
    for name in trackers:
        if find_spec(name) is None:
            raise ConfigError(f"reporting to {name} needs its package: pip install {name}")
