from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from rl_conductor_training.cut_off_replies import CutOffReplies
from rl_conductor_training.train.report import draw_plots, moving_average, write_report
from rl_conductor_training.train.rollouts.masked import MaskedPlans
from rl_conductor_training.train.run_dir import RunDir, RunRecord, Spending, ValidationScore

STEPS = {step: {"right_if_valid": step / 10, "valid": 1.0, "reward": 0.5, "usd": 0.0} for step in range(1, 8)}


def evaluation(step: int, score: float) -> ValidationScore:
    return ValidationScore(
        step=step, score=score, error=0.05, valid=1.0, questions=20, plans=80, usd=0.5, tokens=900, seconds=3.0
    )


def record(**changed: Any) -> RunRecord:
    settings = {"model": "<m>", "task": {"name": "composite:train"}, "grpo": {"steps": 20}}
    return RunRecord(config=settings, versions={"torch": "2"}, machine="GPU", step=7, **changed)


def test_the_report_shows_how_many_plans_were_left_out_and_why(tmp_path: Path) -> None:
    failing = record(masked=MaskedPlans.of(["step 1, a: it is down"] * 3))
    write_report(failing, {1: STEPS[1] | {"masked": 0.75}}, tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "3 plans left out, because a call to a worker or a judge failed (3 × step 1, a: it is down)" in html
    assert "Plans left out" in html


def test_the_report_shows_whose_replies_were_cut_off(tmp_path: Path) -> None:
    cut_off = CutOffReplies(worker="reader", reason="length", cut_off=3, replies=12)
    write_report(record(cut_off=(cut_off,)), STEPS, tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Replies that were cut off" in html
    assert "<td>reader</td><td>max_tokens was reached: raise it for this model</td><td>3 of 12 (25%)</td>" in html


def test_spending_with_an_unknown_price_is_a_lower_bound(tmp_path: Path) -> None:
    write_report(record(spending=Spending(tokens=9, calls=1, is_lower_bound=True)), STEPS, tmp_path / "report.html")
    assert "at least $0 (a price is unknown), 9 tokens" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_report_says_what_points_and_lines_are(tmp_path: Path) -> None:
    write_report(record(), STEPS, tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "A point is one step. A line is the mean of the last 5 steps." in html


def test_plots_without_data_are_left_out() -> None:
    titles = [title for title, _ in draw_plots(STEPS, ())]
    assert titles == ["Scores", "Reward"]  # the free workers cost nothing
    assert draw_plots({}, ()) == []


def test_the_scores_have_the_validation_with_its_error() -> None:
    (_, scores), *_ = draw_plots(STEPS, (evaluation(0, 0.3), evaluation(5, 0.4)))
    assert "validation score" in scores
    assert "right, of the valid plans" in scores


def test_the_report_names_the_best_model_and_the_spending(tmp_path: Path) -> None:
    best = evaluation(5, 0.4)
    spending = Spending(usd=Decimal("1.5"), tokens=12_000, calls=9)
    stopped = record(validation=(best,), best=best, spending=spending, stopped="a cap is used up")
    write_report(stopped, STEPS, tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "0.400 ± 0.050 after step 5 (n = 20)" in html
    assert "$1.50, 12,000 tokens, 9 calls" in html
    assert "Stopped early: a cap is used up" in html
    assert "<m>" not in html
    assert html.count("<svg") == 2


@pytest.mark.parametrize(("window", "expected"), [(1, [1, 3, 5]), (2, [1, 2, 4]), (9, [1, 2, 3])])
def test_the_average_moves_over_the_steps_before(window: int, expected: list[float]) -> None:
    assert moving_average([1, 3, 5], window) == expected


def test_evaluations_of_a_lost_continuation_are_replaced(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    for step, score in ((0, 0.1), (5, 0.2), (10, 0.3), (5, 0.4)):
        run_dir.write_evaluation(evaluation(step, score))
    assert [(row.step, row.score) for row in run_dir.read_evaluations()] == [(0, 0.1), (5, 0.4)]


def test_the_best_model_is_replaced_as_a_whole(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    assert run_dir.read_best() is None
    for step in (0, 5):
        run_dir.unfinished_best.mkdir()
        (run_dir.unfinished_best / f"weights-{step}").touch()
        run_dir.replace_best(evaluation(step, step / 10))
    assert run_dir.read_best() == evaluation(5, 0.5)
    assert not run_dir.unfinished_best.exists()
    assert {file.name for file in run_dir.best.iterdir()} == {"weights-5", "evaluation.json"}
