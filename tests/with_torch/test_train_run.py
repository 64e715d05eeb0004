from __future__ import annotations

import inspect
import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file
from trl.trainer import grpo_trainer
from typer.testing import CliRunner

import processes
import toy_training
from rl_conductor._internal.jsonl import read_lines, read_value
from rl_conductor.cli.main import app
from rl_conductor.errors import BadRequestError, ConfigError, ModelError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.scoring import Sample
from rl_conductor.types import Request
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.request_tokens import DEFAULT_OUTPUT_TOKENS
from rl_conductor_training.output_folder import LOCK_FILE
from rl_conductor_training.train.config import TrainConfig
from rl_conductor_training.train.progress import Status
from rl_conductor_training.train.rollouts.masked import NothingScoredError
from rl_conductor_training.train.rollouts.scoring import LoggedPlan
from rl_conductor_training.train.run_dir import COMPLETE, RunDir, RunRecord, Spending, StepRow
from rl_conductor_training.train.setup import TrainingSetup
from rl_conductor_training.train.train import MASKED_WARNING, silence_libraries, train
from rl_conductor_training.train.trainers.arguments import training_arguments
from rl_conductor_training.train.trainers.callbacks import StepMetrics
from rl_conductor_training.train.warm_start.sft import run_warm_start

pytestmark = pytest.mark.timeout(600)

FAILING_SCORER = f"""
from rl_conductor.scoring import Sample, Task

products = Task("products", (Sample(id="1", question={toy_training.QUESTION!r}),), lambda sample, text: {{}}[text])
"""


class Trained(NamedTuple):
    home: Path
    record: RunRecord
    steps: dict[int, StepMetrics]
    stages: list[str]


def trained(
    home: Path,
    *,
    pool: WorkerPool | None = None,
    last_step: int | None = None,
    limits: Limits | None = None,
    **changed: Any,
) -> Trained:
    steps: dict[int, StepMetrics] = {}
    statuses: list[Status] = []
    record = train(
        toy_training.config(home, **changed),
        home / "run",
        pool or toy_training.pool(),
        last_step=last_step,
        limits=limits,
        on_step=steps.__setitem__,
        on_status=statuses.append,
    )
    return Trained(home, record, steps, list(dict.fromkeys(status.stage for status in statuses)))


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
    assert verdict.last.right_if_valid.value > 0.8
    assert finished.steps[toy_training.STEPS]["workers_bits"] < finished.steps[1]["workers_bits"]


def test_the_record_has_the_warm_start_and_the_usage(finished: Trained) -> None:
    read = RunRecord.model_validate_json((finished.home / "run" / "record.json").read_text())
    assert read == finished.record
    assert read.warm_start is not None
    assert (read.warm_start.plans, read.warm_start.steps) == (3, 30)
    assert read.totals["calls"] == sum(step["calls"] for step in finished.steps.values())


def test_a_run_directory_contains_what_the_docs_list(finished: Trained) -> None:
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    listed = text.partition("The run directory\ncontains:")[2].split("```")[1]
    names = {line.split()[0].split("/")[0] for line in listed.splitlines()[1:] if not line.startswith(" ")}
    found = {re.sub(r"checkpoint-\d+", "checkpoint-N", file.name) for file in (finished.home / "run").iterdir()}
    assert found == names - {"validation.jsonl", "best"}


def test_every_sampled_plan_is_logged_with_its_reward(finished: Trained) -> None:
    plans = read_lines(finished.home / "run" / "plans" / "00001.jsonl", LoggedPlan)
    assert len(plans) == toy_training.ROLLOUTS
    for plan in plans:
        right = plan.workflow is not None and plan.workflow.steps[-1].worker == "right"
        assert plan.reward == (0.0 if plan.workflow is None else 1.0 if right else 0.5)


def test_a_failing_scorer_ends_the_run_with_its_question_and_the_spending_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_scorer.py").write_text(FAILING_SCORER, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"the scorer of 'products' failed on question '1' .*: KeyError: '4[12]'"):
        trained(tmp_path, task={"name": "failing_scorer:products"}, warm_start=None)
    assert RunDir(tmp_path / "run").read_spending().calls > 0


def broken_pool() -> WorkerPool:
    """The workers of `toy_training.pool`, while their vendor is down."""
    down = ModelError("the vendor is down", model="scripted:scripted")
    return WorkerPool({name: ScriptedModel(lambda _: down) for name in ("wrong", "right")})


def test_a_step_whose_workers_all_fail_ends_the_run_which_resumes_there(finished: Trained, tmp_path: Path) -> None:
    home = copy_warm_start(finished, tmp_path / "down")
    trained(home, last_step=1)
    with pytest.raises(NothingScoredError, match=r"step 2 has no plan that could be scored: .* the vendor is down"):
        trained(home, pool=broken_pool())
    assert RunDir(home / "run").read_spending().calls > toy_training.ROLLOUTS
    again = trained(home, last_step=2)
    assert {number: same(step) for number, step in again.steps.items()} == {2: same(finished.steps[2])}


def test_the_record_says_which_plans_of_the_warm_start_were_left_out(tmp_path: Path) -> None:
    down = ModelError("the vendor is down", model="scripted:scripted")
    pool = WorkerPool({"wrong": ScriptedModel(lambda _: down), "right": ScriptedModel("42")})
    warm_start = {"questions": 1, "samples": 8, "steps": 1, "batch": 1}
    grpo = toy_training.GRPO | {"steps": 1}
    record = trained(tmp_path, pool=pool, warm_start=warm_start, grpo=grpo).record
    assert record.warm_start is not None
    ((reason, count),) = record.warm_start.masked.reasons.items()
    assert "the vendor is down" in reason
    assert 0 < count < 8
    assert f"{count} plans left out" in record.warm_start.text
    assert record.masked.reasons[reason] >= count


def test_a_killed_run_resumes_at_the_same_next_step(finished: Trained, tmp_path: Path) -> None:
    home = copy_warm_start(finished, tmp_path / "killed")
    toy_training.kill(home, after=5)
    again = trained(home, last_step=7)
    assert {number: same(step) for number, step in again.steps.items()} == {
        number: same(finished.steps[number])
        for number in (5, 6, 7)  # the newest checkpoint is of step 4
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


async def test_it_trains_while_an_event_loop_is_running(tmp_path: Path) -> None:
    record = train(toy_training.config(tmp_path, **toy_training.ONE_STEP), tmp_path / "run", toy_training.pool())
    assert record.step == 1


def test_processes_without_a_gpu_train_as_one_group(tmp_path: Path) -> None:
    toy_training.config(tmp_path)
    results = processes.run_together(toy_training.train_together, tmp_path, count=2)
    assert results == [{"step": 1, "processes": 2}] * 2


def test_processes_may_run_the_model_unequally_often_in_a_pass(tmp_path: Path) -> None:
    # A broadcast of buffers in each run would wait for ever for processes that run it less often.
    arguments = training_arguments(toy_training.config(tmp_path), tmp_path / "run")
    assert arguments.ddp_broadcast_buffers is False


def test_an_interrupted_run_equals_an_uninterrupted_one(finished: Trained, tmp_path: Path) -> None:
    home = copy_warm_start(finished, tmp_path / "pieces")
    first = trained(home, last_step=1)
    assert list(first.steps) == [1]
    assert same(first.steps[1]) == same(finished.steps[1])
    assert trained(home, last_step=1).steps == {}  # that much is done
    second = trained(home, last_step=2)
    assert list(second.steps) == [2]
    assert same(second.steps[2]) == same(finished.steps[2])


def test_every_stage_is_reported_from_the_start(finished: Trained) -> None:
    assert finished.stages[:3] == ["loading the questions", "loading the model", "warm start: supervised steps"]
    for step in range(1, toy_training.STEPS + 1):
        works = [f"sampling {toy_training.ROLLOUTS} plans", "running plans", "updating the model"]
        first = finished.stages.index(f"step {step}: {works[0]}")
        assert finished.stages[first : first + 3] == [f"step {step}: {work}" for work in works]


def test_a_run_ends_with_a_report_and_the_metrics_of_all_its_steps(finished: Trained) -> None:
    report = (finished.home / "run" / "report.html").read_text(encoding="utf-8")
    assert finished.record.verdict is not None
    assert finished.record.verdict.text.partition(":")[0] in report
    assert "right, of the valid plans" in report
    rows = read_lines(finished.home / "run" / "metrics.jsonl", StepRow)
    assert [row.step for row in rows] == list(finished.steps)
    assert [row.metrics["tokens"] for row in rows] == [step["tokens"] for step in finished.steps.values()]


def test_a_cap_discards_the_step_that_does_not_fit_and_the_run_resumes_there(finished: Trained, tmp_path: Path) -> None:
    home = copy_warm_start(finished, tmp_path / "capped")
    used = finished.steps[1]["tokens"] + finished.steps[2]["tokens"]
    cap = int(used + finished.steps[3]["tokens"] / 2) + DEFAULT_OUTPUT_TOKENS
    first = trained(home, limits=Limits(tokens=cap))
    assert first.record.stopped == "a cap of the training run is used up"
    assert 2 <= first.record.step < toy_training.STEPS
    assert list(first.steps) == list(range(1, first.record.step + 1))
    assert used <= first.record.spending.tokens <= cap
    checkpoint = RunDir(home / "run").latest_checkpoint()
    assert checkpoint is not None
    assert checkpoint.name == f"checkpoint-{first.record.step}"
    again = trained(home, limits=Limits(tokens=cap))
    assert (again.steps, again.record.step) == ({}, first.record.step)
    assert again.record.spending.tokens <= cap
    last = trained(home, last_step=first.record.step + 1)
    assert {number: same(step) for number, step in last.steps.items()} == {
        first.record.step + 1: same(finished.steps[first.record.step + 1])
    }


def test_a_cap_on_the_time_ends_a_run_before_its_first_step(finished: Trained, tmp_path: Path) -> None:
    home = copy_warm_start(finished, tmp_path / "late")
    late = trained(home, limits=Limits(seconds=1e-3))
    assert (late.steps, late.record.step, late.record.spending.calls) == ({}, 0, 0)
    assert late.record.stopped


def test_a_cap_on_the_time_ends_a_warm_start_which_resumes(tmp_path: Path) -> None:
    late = trained(tmp_path, limits=Limits(seconds=1e-3))
    assert late.record.warm_start is None
    assert (tmp_path / "run" / "warm_start" / "checkpoint-1" / COMPLETE).exists()
    assert not (tmp_path / "run" / "final").exists()
    assert late.stages[-1] == "warm start: supervised steps"


def test_validation_keeps_the_best_model_and_does_not_change_the_steps(finished: Trained, tmp_path: Path) -> None:
    home = copy_warm_start(finished, tmp_path / "validated")
    questions = home / "validation.jsonl"
    lines = [{"question": f"What is {first} * 7?", "answer": "42", "scoring": "numeric"} for first in (5, 6.0)]
    questions.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    validation = {"task": {"name": f"jsonl:{questions}"}, "every": 14, "rollouts": 8}
    run = trained(home, last_step=14, validation=validation)
    assert [row.step for row in run.record.validation] == [0, 14]
    assert run.record.validation[0].plans == 16
    assert run.steps[14].pop("validation") == run.record.validation[1].score
    assert {number: same(step) for number, step in run.steps.items()} == {
        number: same(step) for number, step in finished.steps.items() if number <= 14
    }
    best = run.record.best
    assert best is not None
    assert best == max(run.record.validation, key=lambda row: row.score)
    assert best.score > run.record.validation[0].score
    assert best.step == 14
    weights, last = (load_file(home / "run" / name / "model.safetensors") for name in ("best", "final"))
    for name in weights:
        torch.testing.assert_close(weights[name], last[name], rtol=0, atol=0)
    assert "Best validation score" in (home / "run" / "report.html").read_text(encoding="utf-8")
    resumed = trained(home, last_step=15, validation=validation)
    assert resumed.record.validation == run.record.validation


def test_validation_is_scored_by_its_own_task(
    finished: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lenient_task.py").write_text(
        "from rl_conductor.scoring import Sample, Score, Task\n\n\n"
        "def lenient():\n"
        "    sample = Sample(id='one', question='What is 5 * 7?', answer='42')\n"
        "    return Task('lenient', (sample,), lambda sample, text: Score(value=0.25))\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    validation = {"task": {"name": "lenient_task:lenient"}, "every": 2, "rollouts": 4}
    home = copy_warm_start(finished, tmp_path / "run")
    record = trained(home, grpo=toy_training.GRPO | {"steps": 1}, validation=validation).record
    assert {row.score for row in record.validation} == {0.25}


def test_only_scores_of_all_validation_questions_are_compared(
    finished: Trained, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    questions = tmp_path / "validation.jsonl"
    lines = [{"question": f"What is {first} * 7?", "answer": "42", "scoring": "numeric"} for first in (5, 8)]
    questions.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    changed: dict[str, Any] = {
        "grpo": toy_training.GRPO | {"steps": 1},
        "validation": {"task": {"name": f"jsonl:{questions}"}, "every": 2, "rollouts": 4},
    }
    config = toy_training.config(copy_warm_start(finished, tmp_path / "broken"), **changed)
    stages: list[str] = []

    def answer(request: Request) -> str | Exception:
        if "8 * 7" not in request.messages[-1].text:
            return "42"
        return BadRequestError("out of order", model="calculator") if "after step 1" in stages[-1] else "41"

    record = train(
        config,
        tmp_path / "broken" / "run",
        WorkerPool({name: ScriptedModel(answer) for name in ("wrong", "right")}),
        on_status=lambda status: stages.append(status.stage),
    )
    first, last = record.validation
    assert (first.questions, first.left_out, last.questions, last.left_out) == (2, 0, 1, 1)
    assert last.score > first.score
    assert record.best == first
    (warning,) = (each.getMessage() for each in caplog.records if "leaves out" in each.getMessage())
    assert "after step 1 leaves out 1 of 2 questions, such as 'What is 8 * 7?' (step 1, " in warning
    assert "out of order" in warning


def test_a_cap_in_the_evaluation_after_the_last_step_is_made_up(finished: Trained, tmp_path: Path) -> None:
    questions = tmp_path / "validation.jsonl"
    questions.write_text('{"question": "What is 5 * 7?", "answer": "42", "scoring": "numeric"}\n', encoding="utf-8")
    changed: dict[str, Any] = {
        "grpo": toy_training.GRPO | {"steps": 1},
        "validation": {"task": {"name": f"jsonl:{questions}"}, "every": 2, "rollouts": 64},
    }
    whole = trained(copy_warm_start(finished, tmp_path / "whole"), **changed).record
    cap = whole.spending.tokens - whole.validation[1].tokens // 2 + DEFAULT_OUTPUT_TOKENS
    home = copy_warm_start(finished, tmp_path / "capped")
    capped = trained(home, limits=Limits(tokens=cap), **changed).record
    assert (capped.step, bool(capped.stopped), [row.step for row in capped.validation]) == (1, True, [0])
    resumed = trained(home, **changed).record
    assert (resumed.step, resumed.stopped) == (1, "")
    assert [row.score for row in resumed.validation] == [row.score for row in whole.validation]
    assert resumed.best == max(resumed.validation, key=lambda row: row.score)
    assert trained(home, **changed).record == resumed


def test_a_run_directory_resumes_its_own_run_only(finished: Trained) -> None:
    other = toy_training.config(finished.home, seed=7)
    with pytest.raises(ConfigError, match="other settings of seed"):
        train(other, finished.home / "run", toy_training.pool())


def test_a_run_with_other_questions_is_not_resumed(tmp_path: Path) -> None:
    config = toy_training.config(tmp_path)
    run_dir = RunDir.open(tmp_path / "run", config)
    run_dir.write_questions([Sample(id="1", question="What is 1 + 1?")], [])
    run_dir.write_spending(Spending(calls=1))
    with pytest.raises(ConfigError, match="a run with other questions"):
        train(config, tmp_path / "run", toy_training.pool())


def test_a_run_with_other_workers_is_not_resumed(tmp_path: Path) -> None:
    config, pool = toy_training.config(tmp_path), toy_training.pool()
    run_dir = RunDir.open(tmp_path / "run", config)
    run_dir.write_workers(pool, {})
    run_dir.write_spending(Spending(calls=1))
    with pytest.raises(ConfigError, match="a run with other workers: their order was wrong, right"):
        train(config, tmp_path / "run", WorkerPool([pool["right"], pool["wrong"]]))


@pytest.mark.parametrize("targets", ["query", ["query", "key"]])
@pytest.mark.parametrize("warm_start", [None, {"questions": 1, "draw": "space", "subtasks": ["Solve it."]}])
def test_lora_targets_without_a_module_are_an_error_before_any_worker_is_called(
    tmp_path: Path, targets: str | list[str], warm_start: dict[str, Any] | None
) -> None:
    problem = r"lora.targets = .* matches no module of .*; its layers are q_proj, k_proj, v_proj, o_proj"
    with pytest.raises(ConfigError, match=problem):
        trained(tmp_path, lora={"targets": targets}, warm_start=warm_start)
    assert not RunDir(tmp_path / "run").read_spending().calls


def test_a_missing_reporter_is_reported_at_the_start(tmp_path: Path) -> None:
    config = toy_training.config(tmp_path, keep={"report_to": ["trackio"]})
    with pytest.raises(ConfigError, match="reporting to trackio needs its package: pip install trackio"):
        train(config, tmp_path / "run", toy_training.pool())
    assert not (tmp_path / "run").exists()


def test_the_flag_overrides_the_reporters_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    workers = f'[pool.workers.one]\nmodel = "transformers:{tmp_path}"\n'
    file.write_text(f'model = "m"\n[task]\nname = "composite:train"\n{workers}[keep]\nreport_to = ["wandb"]\n')
    run = CliRunner().invoke(app, ["train", str(file), "--out", str(tmp_path / "run"), "--report-to", "trackio"])
    assert run.exit_code == 2
    assert "pip install trackio" in run.stderr


def test_the_command_shows_the_cost_the_stages_and_the_curves(tmp_path: Path) -> None:
    model = toy_training.config(tmp_path).model
    (tmp_path / "train.toml").write_text(
        f'model = "{model}"\n[task]\nname = "jsonl:tasks.jsonl"\n'
        f'[pool.workers.one]\nmodel = "transformers:{model}"\nsampling = {{ max_tokens = 4 }}\n'
        "[plan]\nexamples = 0\nmax_steps = 1\nmax_tokens = 60\n"
        "[grpo]\nsteps = 1\nquestions = 1\nrollouts = 2\nmicro_batch = 2\n",
        encoding="utf-8",
    )
    arguments = ["train", str(tmp_path / "train.toml"), "--out", str(tmp_path / "run"), "--seed", "3"]
    run = CliRunner().invoke(app, arguments)
    assert run.exit_code == 0, run.output
    assert read_value(tmp_path / "run" / "config.json", TrainConfig).seed == 3
    expected = ["loading the questions", "expected of the workers: about 2 calls", "loading the model"]
    expected += ["step 1: sampling 2 plans", "step 1: running plans, 0 of 2", "step 1 of 1: reward", "measured so far"]
    places = [run.stderr.index(text) for text in expected]
    assert places == sorted(places)
    assert "report.html" in run.stdout


def test_only_the_warning_about_masked_plans_is_silenced(caplog: pytest.LogCaptureFixture) -> None:
    silence_libraries()
    talker = logging.getLogger(grpo_trainer.__name__)
    assert f"{MASKED_WARNING} for the following" in inspect.getsource(grpo_trainer)
    for rank in ("", "[RANK 0] "):
        talker.warning(f"{rank}{MASKED_WARNING} for the following kwargs: a long prompt")
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


def test_a_run_directory_that_another_process_trains_in_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with FileLock(tmp_path / "run" / LOCK_FILE), pytest.raises(ConfigError, match="another process writes to"):
        trained(tmp_path)
