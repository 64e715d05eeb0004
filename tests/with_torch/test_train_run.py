from __future__ import annotations

import inspect
import logging
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from trl.trainer import grpo_trainer
from typer.testing import CliRunner

import toy_training
from rl_conductor._internal.jsonl import read_lines
from rl_conductor.cli.main import app
from rl_conductor.errors import ConfigError
from rl_conductor_training.train.rollouts.scoring import LoggedPlan
from rl_conductor_training.train.run_dir import RunDir, RunRecord
from rl_conductor_training.train.setup import TrainingSetup
from rl_conductor_training.train.train import MASKED_WARNING, StepMetrics, StopAfter, silence_libraries, train
from rl_conductor_training.train.warm_start.sft import run_warm_start

pytestmark = pytest.mark.timeout(600)


class Trained(NamedTuple):
    home: Path
    record: RunRecord
    steps: dict[int, StepMetrics]


def trained(home: Path, *, stop_after: StopAfter | None = None) -> Trained:
    steps: dict[int, StepMetrics] = {}
    config = toy_training.config(home)
    record = train(config, home / "run", toy_training.pool(), stop_after=stop_after, on_step=steps.__setitem__)
    return Trained(home, record, steps)


def copy_warm_start(finished: Trained, home: Path) -> Path:
    """A home where nothing is done yet but the warm start of `whole`."""
    shutil.copytree(finished.home, home, ignore=shutil.ignore_patterns("run"))
    shutil.copytree(finished.home / "run" / "warm_start", home / "run" / "warm_start")
    return home


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(tmp_path_factory.mktemp("whole"))


def test_grpo_learns_which_worker_is_right(finished: Trained) -> None:
    assert finished.steps[1]["right_if_valid"] < 0.9
    verdict = finished.record.verdict
    assert verdict is not None
    assert verdict.finding == "gain"
    assert verdict.last.right_if_valid is not None
    assert verdict.last.right_if_valid.value > 0.9
    assert finished.steps[toy_training.STEPS]["workers_bits"] < finished.steps[1]["workers_bits"]


def test_the_record_has_the_warm_start_and_the_usage(finished: Trained) -> None:
    read = RunRecord.model_validate_json((finished.home / "run" / "record.json").read_text())
    assert read == finished.record
    assert read.warm_start is not None
    assert (read.warm_start.plans, read.warm_start.steps) == (2, 30)
    assert read.totals["calls"] == sum(step["calls"] for step in finished.steps.values())


def test_every_sampled_plan_is_logged_with_its_reward(finished: Trained) -> None:
    plans = read_lines(finished.home / "run" / "plans" / "00001.jsonl", LoggedPlan)
    assert len(plans) == toy_training.ROLLOUTS
    for plan in plans:
        right = plan.workflow is not None and plan.workflow.steps[-1].worker == "right"
        assert plan.reward == (0.0 if plan.workflow is None else 1.0 if right else 0.5)


def test_a_killed_run_resumes_at_the_same_next_step(finished: Trained, tmp_path: Path) -> None:
    home = copy_warm_start(finished, tmp_path / "killed")
    toy_training.kill(home, after=5)
    again = trained(home)
    assert min(again.steps) == 5  # the newest checkpoint is of step 4
    assert {number: same(step) for number, step in again.steps.items()} == {
        number: same(step) for number, step in finished.steps.items() if number >= 5
    }


def test_a_killed_warm_start_resumes_at_the_same_next_step(finished: Trained, tmp_path: Path) -> None:
    home = copy_warm_start(finished, tmp_path / "killed")
    warm = home / "run" / "warm_start"
    for later in ("warmth.json", "model.safetensors"):
        (warm / later).unlink()
    shutil.rmtree(warm / "checkpoint-30")
    (warm / "checkpoint-29").mkdir()  # cut short
    config = toy_training.config(home)
    assert config.warm_start is not None
    again = run_warm_start(
        TrainingSetup(config, toy_training.pool()), config.warm_start, RunDir.open(home / "run", config)
    )
    assert again.model_copy(update={"source": ""}) == (
        finished.record.warm_start and finished.record.warm_start.model_copy(update={"source": ""})
    )
    weights = [load_file(folder / "model.safetensors") for folder in (warm, finished.home / "run" / "warm_start")]
    for name in weights[0]:
        torch.testing.assert_close(weights[0][name], weights[1][name], rtol=0, atol=0)


def test_only_one_process_samples_the_plans_of_the_warm_start(shared_training: list[Any]) -> None:
    first, second = (said["warm_start"] for said in shared_training)
    assert (first["asked"], second["asked"]) == (4, 0)
    assert first["plans"] == second["plans"] > 0


def test_an_interrupted_run_equals_an_uninterrupted_one(finished: Trained, tmp_path: Path) -> None:
    home = copy_warm_start(finished, tmp_path / "pieces")
    first = trained(home, stop_after=StopAfter(step=1))
    assert list(first.steps) == [1]
    assert same(first.steps[1]) == same(finished.steps[1])
    assert trained(home, stop_after=StopAfter(step=1)).steps == {}  # that much is done
    second = trained(home, stop_after=StopAfter(seconds=0))
    assert list(second.steps) == [2]
    assert same(second.steps[2]) == same(finished.steps[2])


def test_a_run_directory_resumes_its_own_run_only(finished: Trained) -> None:
    other = toy_training.config(finished.home, seed=7)
    with pytest.raises(ConfigError, match="other settings of seed"):
        train(other, finished.home / "run", toy_training.pool())


def test_a_missing_reporter_is_reported_at_the_start(tmp_path: Path) -> None:
    config = toy_training.config(tmp_path, keep={"report_to": ["trackio"]})
    with pytest.raises(ConfigError, match="reporting to trackio needs its package: pip install trackio"):
        train(config, tmp_path / "run", toy_training.pool())
    assert not (tmp_path / "run").exists()


def test_the_flag_overrides_the_reporters_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    workers = f'[pool.workers.one]\nmodel = "transformers:{tmp_path}"\n'
    file.write_text(f'model = "m"\n[task]\nname = "composite:train"\n{workers}[keep]\nreport_to = ["wandb"]\n')
    run = CliRunner().invoke(app, ["train", str(file), "--output", str(tmp_path / "run"), "--report-to", "trackio"])
    assert run.exit_code == 2
    assert "pip install trackio" in run.stderr


def test_only_the_warning_about_masked_plans_is_silenced(caplog: pytest.LogCaptureFixture) -> None:
    silence_libraries()
    talker = logging.getLogger(grpo_trainer.__name__)
    assert f"{MASKED_WARNING} for the following" in inspect.getsource(grpo_trainer)
    talker.warning(f"{MASKED_WARNING} for the following kwargs: a long prompt")
    talker.warning("The vLLM server runs with `--logprobs-mode raw_logprobs`")
    assert [record.getMessage() for record in caplog.records] == [
        "The vLLM server runs with `--logprobs-mode raw_logprobs`"
    ]


def test_a_small_step_changes_all_trained_weights_under_bfloat16(tmp_path: Path) -> None:
    grpo = toy_training.GRPO | {"steps": 1, "learning_rate": 1e-6}
    config = toy_training.config(tmp_path, dtype="bfloat16", warm_start=None, grpo=grpo)
    train(config, tmp_path / "run", toy_training.pool())
    before, after = (
        load_file(folder / "model.safetensors") for folder in (tmp_path / "model", tmp_path / "run" / "final")
    )
    for name in (name for name in before if "mlp" in name):
        moved = (after[name].double() - before[name].double()).abs()
        assert ((moved > 0) & (moved < 2e-6)).double().mean() > 0.9


def same(step: StepMetrics) -> StepMetrics:
    """The metrics that two runs must agree on, which are all but the time."""
    return {name: value for name, value in step.items() if name != "step_time"}
