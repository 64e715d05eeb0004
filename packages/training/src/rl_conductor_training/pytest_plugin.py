"""A pytest plugin that fails if a learned conductor became worse than its record on its held-out questions.

`pytest --conductor FOLDER --conductor-questions FILE` adds a test; the fixture `check_conductor` does the same in a
test of yours. pytest loads this module in every session, so it imports nothing else before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rl_conductor.models import Model
    from rl_conductor.planning.planner import Planner
    from rl_conductor.pool.pool import WorkerPool
    from rl_conductor.workflow.limits import Limits
    from rl_conductor_training.tasks import Task

CheckConductor = Callable[..., None]
"""The type of the fixture `check_conductor`."""
PROPERTY = "conductor"
"""The property of a test report that contains the comparison, also with pytest-xdist."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options to pytest's command line."""
    group = parser.getgroup("conductor", "learned conductors (rl-conductor-training)")
    group.addoption(
        "--conductor",
        metavar="FOLDER",
        help="Fail if the learned conductor in FOLDER is significantly worse than its record on held-out questions.",
    )
    group.addoption(
        "--conductor-questions", metavar="FILE", help="The questions that it was learned from (JSON Lines), or a task."
    )
    group.addoption("--conductor-usd", metavar="USD", type=_usd, help="Hard cap of this test in US dollars.")


def _usd(text: str) -> Decimal:
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal(-1)
    if not (amount.is_finite() and amount >= 0):
        raise pytest.UsageError(f"--conductor-usd is {text!r}; write an amount in US dollars, such as 0.50")
    return amount


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Adds the test of `--conductor`."""
    folder, questions = config.getoption("conductor"), config.getoption("conductor_questions")
    if folder is None:
        return
    if questions is None:
        raise pytest.UsageError("--conductor needs --conductor-questions FILE: the questions that it was learned from")
    items.append(ConductorItem.from_parent(session, name=f"conductor[{folder}]", folder=folder, questions=questions))


class ConductorItem(pytest.Item):
    """The test that `--conductor` adds."""

    def __init__(self, *, folder: str, questions: str, **options: Any) -> None:
        super().__init__(**options)
        self.folder, self.questions = folder, questions

    def runtest(self) -> None:
        """Compares the conductor with its record."""
        from rl_conductor.workflow.limits import Limits  # noqa: PLC0415

        limits = Limits(usd=self.config.getoption("conductor_usd"))
        _check(self, self.folder, self.questions, limits=limits)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Returns where the test is, for reports."""
        return Path(self.folder), None, self.name


@pytest.fixture
def check_conductor(request: pytest.FixtureRequest) -> CheckConductor:
    """A function that fails the test if a learned conductor became worse than its record.

    Call `check_conductor(folder, questions)`, with `pool`, `planner`, `limits` and `concurrency` as for
    `rl_conductor_training.evals.compare_with_record`.
    """

    def check(
        folder: str | Path,
        questions: Task | str | Path,
        *,
        pool: WorkerPool | None = None,
        planner: Planner | Model | str | None = None,
        limits: Limits | None = None,
        concurrency: int = 4,
    ) -> None:
        _check(request.node, folder, questions, pool=pool, planner=planner, limits=limits, concurrency=concurrency)

    return check


def _check(item: pytest.Item, folder: str | Path, questions: Task | str | Path, **options: Any) -> None:
    """Fails the test if the conductor is worse than its record or can't be compared, without a traceback."""
    from rl_conductor._internal.sync import run_sync  # noqa: PLC0415
    from rl_conductor.errors import ConductorError  # noqa: PLC0415
    from rl_conductor_training.evals.record_check import compare_with_record  # noqa: PLC0415 - imports scipy

    problem = ""
    try:
        comparison = run_sync(compare_with_record(folder, questions, **options))
    except ConductorError as error:
        problem = f"{folder} can't be compared with its record: {error}"
    if problem:  # not in the handler, where pytest would print the reason twice
        pytest.fail(problem, pytrace=False)
    item.user_properties.append((PROPERTY, comparison.report))
    if comparison.is_worse:
        pytest.fail(comparison.report, pytrace=False)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the comparisons of tests that passed; those of failed tests are in their reports."""
    passed = terminalreporter.stats.get("passed", [])
    reports = [value for report in passed for name, value in report.user_properties if name == PROPERTY]
    if reports:
        terminalreporter.section("learned conductors")
    for report in reports:
        terminalreporter.write_line(report)
