"""The report of a bench: the same tables for the terminal, Markdown and HTML, with plots and the run's settings.

No sentence claims more than its numbers: the word for an advantage comes from `Comparison.verdict` alone.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from rl_conductor._internal.formatting import cost, cost_in_words, counted, seconds, tokens
from rl_conductor._internal.io import write_text
from rl_conductor.prompting.prompt_version import prompt_version
from rl_conductor.text.truncation import truncate_middle
from rl_conductor.types import Usage, total
from rl_conductor_training.bench import plots
from rl_conductor_training.bench.accuracy import question_groups
from rl_conductor_training.bench.results import SampleResult
from rl_conductor_training.bench.runner import Bench, SystemResult, TaskResult
from rl_conductor_training.bench.summary import (
    Comparison,
    SummaryRow,
    Verdict,
    compare_systems,
    gaps_closed,
    summarize,
    worker_shares,
)
from rl_conductor_training.bench.systems.oracle import Oracle
from rl_conductor_training.bench.systems.single_model import BestSingle
from rl_conductor_training.cut_off_replies import cut_off_table, find_cut_off
from rl_conductor_training.reporting import Table, render
from rl_conductor_training.statistics import RESAMPLES, Difference, Estimate, format_size
from rl_conductor_training.tasks.scorers.judge import undecided_remark

SYSTEM_COLUMNS = (
    "system",
    "accuracy",
    "valid plans",
    "accuracy if valid",
    "steps",
    "tokens",
    "$",
    "p50",
    "p95",
    "failed",
)
COMPARISON_COLUMNS = ("system", "against", "difference", "95 % interval", "p", "if valid", "verdict")
VERDICTS: dict[Verdict, str] = {
    "gain": "gain",
    "loss": "loss",
    "not shown": "not shown",
    "validity only": "only more valid plans",
    "sees answers": "knows the answers",
}
NONE = "–"
PROBLEM_CHARS = 300
"""Maximum number of characters of a plan's problem in a remark."""
PLOTS_FOLDER = "plots"
"""Folder of the plots, inside the report's folder."""
METHOD = (
    "Each interval is that of its own comparison. p is from McNemar's exact test, or from a sign-flip test where"
    " repetitions disagree or questions form groups, whose signs are flipped together: exact for up to 13 questions or"
    f" groups that differ, else with {RESAMPLES:,} random draws. It is corrected for the {{comparisons}} of this table"
    " (Holm). Standard errors and intervals are clustered by group."
)
LIBRARIES = ("rl-conductor", "numpy", "scipy", "pydantic", "wordllama", "xllamacpp", "transformers", "vllm", "openai")


@dataclass(frozen=True)
class Plot:
    """A plot with its title and file name."""

    title: str
    file: str
    """Path in the report's folder."""
    svg: str


@dataclass(frozen=True)
class ReportSection:
    """The tables and plots of one task and pool."""

    title: str
    models: Table
    systems: Table
    comparisons: Table
    method: str
    """The method by which the comparisons were tested."""
    depths: Table
    steps: Table
    workers: Table
    descriptions: Table
    cut_off: Table
    """The workers whose replies were cut off."""
    remarks: tuple[str, ...]
    plots: tuple[Plot, ...]


@dataclass(frozen=True)
class Report:
    """The report of a bench, a section for each task and pool."""

    title: str
    run_info: Table
    sections: tuple[ReportSection, ...]


def build_report(bench: Bench, task_results: Sequence[TaskResult], *, command: str) -> Report:
    """Builds the report of a finished bench; `command` is the command line that ran it."""
    return Report(
        title=f"Bench of {', '.join(bench.settings.tasks)}",
        run_info=Table(("setting", "value"), tuple(_run_info(bench, task_results, command))),
        sections=tuple(_build_section(bench, task_result) for task_result in task_results),
    )


def write_report(report: Report, folder: Path) -> None:
    """Writes `report.md` with its plots in a folder, and `report.html`, which embeds them."""
    for suffix in ("md", "html"):
        write_text(folder / f"report.{suffix}", render(f"bench.{suffix}", title=report.title, report=report))
    (folder / PLOTS_FOLDER).mkdir(exist_ok=True)
    for section in report.sections:
        for plot in section.plots:
            write_text(folder / plot.file, plot.svg)


# -------------------------------------------------------------------------------------- run info


def _run_info(bench: Bench, task_results: Sequence[TaskResult], command: str) -> list[tuple[str, str]]:
    settings = bench.settings
    results = [result for task_result in task_results for system in task_result.systems for result in system.results]
    calibration = [result for task_result in task_results for result in task_result.calibration]
    return [
        ("command", command),
        ("date", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"),
        ("samples", "; ".join(map(_title, task_results))),
        ("repeats", str(settings.repeats)),
        ("seed", str(settings.seed)),
        ("samples at a time", str(settings.concurrency)),
        ("usage of these results", _format_usage([result.usage for result in results])),
        ("usage of calibration", _format_usage([result.usage for result in calibration])),
        ("paid by this process", cost_in_words(bench.meter.paid)),
        ("machine", _machine()),
        ("versions", ", ".join(_versions())),
    ]


def _all_results(task_result: TaskResult) -> list[SampleResult]:
    return [*task_result.calibration, *(result for system in task_result.systems for result in system.results)]


def _title(task_result: TaskResult) -> str:
    groups = question_groups(task_result.systems[0].results) if task_result.systems else []
    title = f"{task_result.task} over the pool {task_result.pool}, {format_size(len(groups), len(set(groups)))}"
    if task_result.left_out:
        title += f", without {counted(task_result.left_out, 'question')} from which a system learned"
    return title


def _format_usage(usages: Sequence[Usage]) -> str:
    usage = total(usages)
    calls = f"{counted(usage.calls, 'call')}, {usage.cached_calls:,} of them cached"
    return f"{calls}, {tokens(usage)}, {cost_in_words(usage)}"


def _machine() -> str:
    return f"{platform.system()} {platform.machine()}, {counted(os.cpu_count() or 1, 'core')}"


def _versions() -> list[str]:
    versions = [f"Python {platform.python_version()}"]
    for library in LIBRARIES:
        try:
            versions.append(f"{library} {version(library)}")
        except ModuleNotFoundError:  # most are optional
            continue
    return [*versions, f"prompts {prompt_version()}"]


# -------------------------------------------------------------------------------------- one section


def _build_section(bench: Bench, task_result: TaskResult) -> ReportSection:
    summary = [summarize(system) for system in task_result.systems]
    comparisons = compare_systems(task_result, bench.settings.against)
    return ReportSection(
        title=_title(task_result),
        models=Table(("worker", "model"), tuple(task_result.models.items())),
        systems=Table(SYSTEM_COLUMNS, tuple(map(_system_cells, summary))),
        comparisons=Table(COMPARISON_COLUMNS, tuple(map(_comparison_cells, comparisons))),
        method=METHOD.format(comparisons=counted(len(comparisons), "comparison")),
        depths=_depths_table(summary),
        steps=_steps_table(summary),
        workers=_workers_table(task_result),
        descriptions=Table(("system", "what it does"), tuple((row.system, row.description) for row in summary)),
        cut_off=cut_off_table(find_cut_off(result.finishes for result in _all_results(task_result))),
        remarks=tuple(_remarks(bench, task_result, comparisons)),
        plots=tuple(_plots(task_result, summary)),
    )


def _system_cells(row: SummaryRow) -> tuple[str, ...]:
    per_run = row.usage.model_copy(update={"cost": row.usage.cost / row.runs})
    return (
        row.system,
        _format_estimate(row.accuracy),
        NONE if row.valid_plans is None else f"{row.valid_plans:.0%}",
        _format_estimate(row.accuracy_if_valid),
        f"{row.steps:.1f}",
        f"{row.tokens:,.0f}",
        cost(per_run).replace("$", ""),
        seconds(row.p50),
        seconds(row.p95),
        str(row.failures),
    )


def _format_estimate(estimate: Estimate | None) -> str:
    return NONE if estimate is None else estimate.formatted


def _comparison_cells(comparison: Comparison) -> tuple[str, ...]:
    difference = comparison.difference
    return (
        comparison.system,
        comparison.against,
        f"{difference.value:+.2f}",
        f"{difference.low:+.2f} to {difference.high:+.2f}",
        _format_p(difference.p),
        _format_difference(comparison.difference_if_valid),
        VERDICTS[comparison.verdict],
    )


def _format_p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _format_difference(difference: Difference | None) -> str:
    if difference is None:
        return NONE
    return f"{difference.value:+.2f} ({difference.low:+.2f} to {difference.high:+.2f}, n = {difference.n})"


def _depths_table(summary: Sequence[SummaryRow]) -> Table:
    depths = _depths(summary)
    rows = [
        (
            row.system,
            f"{row.accuracy.low:.2f} to {row.accuracy.high:.2f}",
            *(_format_estimate(row.accuracy_by_depth.get(depth)) for depth in depths),
        )
        for row in summary
    ]
    return Table(("system", "all, 95 % interval", *map(_depth_column, depths)), tuple(rows))


def _steps_table(summary: Sequence[SummaryRow]) -> Table:
    depths = _depths(summary)
    rows = [(row.system, *(f"{row.steps_by_depth[depth]:.1f}" for depth in depths)) for row in summary if depths]
    return Table(("system", *map(_depth_column, depths)), tuple(rows))


def _depths(summary: Sequence[SummaryRow]) -> list[int]:
    return sorted({depth for row in summary for depth in row.accuracy_by_depth})


def _depth_column(depth: int) -> str:
    return f"depth {depth}"


def _workers_table(task_result: TaskResult) -> Table:
    rows = [
        (system.system.name, domain or "all", ", ".join(f"{worker} {share:.0%}" for worker, share in shares.items()))
        for system in task_result.systems
        if _uses_several_workers(system)
        for domain, shares in worker_shares(system).items()
    ]
    return Table(("system", "domain", "share of steps by worker"), tuple(rows))


def _uses_several_workers(system: SystemResult) -> bool:
    return len({worker for result in system.results for worker in result.workers}) > 1


def _remarks(bench: Bench, task_result: TaskResult, comparisons: Sequence[Comparison]) -> list[str]:
    """States unclear verdicts, invalid plans, and how much of the gap to the oracle was closed.

    The latter is stated for the systems that beat the best worker.
    """
    remarks = [*_undecided_remarks(task_result), *_invalid_plan_remarks(task_result)]
    names = {type(entry): name for name, entry in bench.settings.systems.items()}
    single, oracle = names.get(BestSingle), names.get(Oracle)
    if single is None or oracle is None:
        return remarks
    return remarks + [
        f"{gap.system} closed {gap.value:.0%} of the gap from {single} to {oracle}"
        f" (95 % interval {gap.low:.0%} to {gap.high:.0%})."
        for gap in gaps_closed(task_result, comparisons, single=single, oracle=oracle)
    ]


def _undecided_remarks(task_result: TaskResult) -> Iterator[str]:
    results = _all_results(task_result)
    if undecided := sum(result.undecided for result in results):
        remark = undecided_remark(undecided, counted(len(results), "run"))
        yield f"{remark[0].upper()}{remark[1:]}."


def _invalid_plan_remarks(task_result: TaskResult) -> Iterator[str]:
    for system in task_result.systems:
        problems = Counter(result.plan_problem for result in system.results if result.plan_problem)
        for problem, count in problems.most_common(1):
            invalid, planned = problems.total(), sum(result.valid is not None for result in system.results)
            yield (
                f"The first plan of {system.system.name} was not valid as written in {invalid:,} of {planned:,} runs, "
                f"most often ({count:,}) because: {truncate_middle(problem, PROBLEM_CHARS)}"
            )


def _plots(task_result: TaskResult, summary: Sequence[SummaryRow]) -> list[Plot]:
    def plot(name: str, title: str, svg: str) -> Plot:
        return Plot(title, f"{PLOTS_FOLDER}/{task_result.pool}-{task_result.task}-{name}.svg", svg)

    result = [plot("tokens", "Accuracy against tokens", plots.plot_pareto(summary, "tokens"))]
    if any(row.dollars for row in summary):
        result.append(plot("dollars", "Accuracy against dollars", plots.plot_pareto(summary, "dollars")))
    if _depths(summary):
        result.append(plot("steps", "Steps by question depth", plots.plot_steps_by_depth(summary)))
        result.append(plot("depth", "Accuracy by question depth", plots.plot_accuracy_by_depth(summary)))
    combined = [system for system in task_result.systems if _uses_several_workers(system)]
    if combined:
        result.append(plot("workers", "Share of steps by worker", plots.plot_worker_shares(combined)))
    return result
