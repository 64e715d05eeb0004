"""The report of a bench: the same tables for the terminal, Markdown and HTML, and what they were made with.

No sentence here claims more than its numbers do: the word for an advantage comes from `Comparison.verdict` alone.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from rl_conductor.amounts import cost, cost_in_words, counted, dollars, seconds, tokens
from rl_conductor.bench import plots
from rl_conductor.bench.runner import Bench, Section
from rl_conductor.bench.statistics import RESAMPLES, Difference, Estimate
from rl_conductor.bench.systems.alone import BestSingle
from rl_conductor.bench.systems.oracle import Oracle
from rl_conductor.bench.tables import Comparison, Line, Verdict, chosen, comparisons, line, ways
from rl_conductor.types import Usage, total
from rl_conductor.wording import wording_version

SYSTEMS = ("system", "right", "valid plans", "right if valid", "steps", "tokens", "$", "p50", "p95", "failed")
COMPARED = ("system", "against", "difference", "95 % interval", "p", "if valid", "verdict")
VERDICTS: dict[Verdict, str] = {
    "gain": "gain",
    "loss": "loss",
    "not shown": "not shown",
    "validity only": "only more valid plans",
    "peeks": "knows the answers",
}
NONE = "–"
DRAWINGS = "plots"
"""The folder of the drawings, in the report's own."""
TESTED = (
    "Intervals are each comparison's own. p is that of McNemar's exact test, or where repetitions disagree that of"
    f" changes of sign: all of them for up to 13 questions that differ, else {RESAMPLES:,} at random. It is corrected"
    " for the {comparisons} of this table (Holm)."
)
LIBRARIES = ("rl-conductor", "numpy", "scipy", "pydantic", "wordllama", "xllamacpp", "transformers", "vllm", "openai")


@dataclass(frozen=True)
class Table:
    """Cells as they are shown."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Plot:
    """A drawing, and what it shows."""

    title: str
    file: str
    """Where `write` puts it, in the report's folder."""
    svg: str


@dataclass(frozen=True)
class Part:
    """What is told of one section."""

    title: str
    models: Table
    systems: Table
    comparisons: Table
    tested: str
    """How the comparisons were made."""
    depths: Table
    steps: Table
    workers: Table
    about: Table
    remarks: tuple[str, ...]
    plots: tuple[Plot, ...]


@dataclass(frozen=True)
class Report:
    """The whole report."""

    title: str
    facts: Table
    sections: tuple[Part, ...]


def report_of(bench: Bench, sections: Sequence[Section], *, command: str) -> Report:
    """What is told of a bench that has run."""
    return Report(
        title=f"Bench of {', '.join(bench.settings.tasks)}",
        facts=Table(("what", "which"), tuple(_facts(bench, sections, command))),
        sections=tuple(_part(bench, section) for section in sections),
    )


def write(report: Report, folder: Path) -> None:
    """Write `report.md` with its drawings beside it, and `report.html`, which needs nothing else to be read."""
    made = Environment(
        loader=PackageLoader("rl_conductor.bench"),
        autoescape=select_autoescape(["html.jinja"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["cell"] = lambda text: text.replace("|", "\\|").replace("\n", " ")
    for form in ("md", "html"):
        text = made.get_template(f"report.{form}.jinja").render(report=report)
        (folder / f"report.{form}").write_text(text, encoding="utf-8")
    (folder / DRAWINGS).mkdir(exist_ok=True)
    for part in report.sections:
        for plot in part.plots:
            (folder / plot.file).write_text(plot.svg, encoding="utf-8")


# ---------------------------------------------------------------------------------------- the facts


def _facts(bench: Bench, sections: Sequence[Section], command: str) -> list[tuple[str, str]]:
    settings = bench.settings
    rows = [row for section in sections for entrant in section.entrants for row in entrant.rows]
    learned = [row for section in sections for row in section.learning]
    return [
        ("command", command),
        ("date", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"),
        ("samples", "; ".join(map(_title, sections))),
        ("repeats", str(settings.repeats)),
        ("seed", str(settings.seed)),
        ("samples at a time", str(settings.concurrency)),
        ("spend of these rows", _spend([row.usage for row in rows])),
        ("spend on learning", _spend([row.usage for row in learned])),
        ("paid by this process", dollars(bench.account.paid)),
        ("machine", _machine()),
        ("versions", ", ".join(_versions())),
    ]


def _title(section: Section) -> str:
    count = len({row.key.sample for entrant in section.entrants for row in entrant.rows})
    return f"{section.task} over the pool {section.pool}, n = {count}"


def _spend(usages: Sequence[Usage]) -> str:
    used = total(usages)
    calls = f"{counted(used.calls, 'call')}, {used.cached_calls:,} of them cached"
    return f"{calls}, {tokens(used)}, {cost_in_words(used)}"


def _machine() -> str:
    return f"{platform.system()} {platform.machine()}, {counted(os.cpu_count() or 1, 'core')}"


def _versions() -> list[str]:
    found = [f"Python {platform.python_version()}"]
    for library in LIBRARIES:
        try:
            found.append(f"{library} {version(library)}")
        except ModuleNotFoundError:  # not all of them are needed
            continue
    return [*found, f"prompts {wording_version()}"]


# -------------------------------------------------------------------------------------- one section


def _part(bench: Bench, section: Section) -> Part:
    lines = [line(entrant) for entrant in section.entrants]
    compared = comparisons(section, bench.settings.against)
    return Part(
        title=_title(section),
        models=Table(("worker", "model"), tuple(section.models.items())),
        systems=Table(SYSTEMS, tuple(map(_cells, lines))),
        comparisons=Table(COMPARED, tuple(map(_compared_cells, compared))),
        tested=TESTED.format(comparisons=counted(len(compared), "comparison")),
        depths=_depths(lines),
        steps=_steps(lines),
        workers=_workers(section),
        about=Table(("system", "what it does"), tuple((one.system, one.about) for one in lines)),
        remarks=tuple(_remarks(bench, section, compared)),
        plots=tuple(_plots(section, lines)),
    )


def _cells(one: Line) -> tuple[str, ...]:
    per_run = one.usage.model_copy(update={"cost": one.usage.cost / one.runs})
    return (
        one.system,
        share(one.accuracy),
        NONE if one.valid is None else f"{one.valid:.0%}",
        share(one.given_valid),
        f"{one.steps:.1f}",
        f"{one.tokens:,.0f}",
        cost(per_run).replace("$", ""),
        seconds(one.p50),
        seconds(one.p95),
        str(one.failures),
    )


def share(measured: Estimate | None) -> str:
    """A share with its standard error."""
    return NONE if measured is None else measured.in_words


def _compared_cells(one: Comparison) -> tuple[str, ...]:
    gap = one.difference
    return (
        one.system,
        one.against,
        f"{gap.value:+.2f}",
        f"{gap.low:+.2f} to {gap.high:+.2f}",
        _chance(gap.p),
        _gap(one.given_valid),
        VERDICTS[one.verdict],
    )


def _chance(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _gap(gap: Difference | None) -> str:
    return NONE if gap is None else f"{gap.value:+.2f} ({gap.low:+.2f} to {gap.high:+.2f}, n = {gap.n})"


def _depths(lines: Sequence[Line]) -> Table:
    depths = _levels(lines)
    rows = [(one.system, _interval(one), *(share(one.by_depth.get(depth)) for depth in depths)) for one in lines]
    return Table(("system", "all, 95 % interval", *map(_level, depths)), tuple(rows))


def _interval(one: Line) -> str:
    return f"{one.accuracy.low:.2f} to {one.accuracy.high:.2f}"


def _steps(lines: Sequence[Line]) -> Table:
    depths = _levels(lines)
    rows = [(one.system, *(f"{one.steps_by_depth[depth]:.1f}" for depth in depths)) for one in lines if depths]
    return Table(("system", *map(_level, depths)), tuple(rows))


def _levels(lines: Sequence[Line]) -> list[int]:
    return sorted({depth for one in lines for depth in one.by_depth})


def _level(depth: int) -> str:
    return f"depth {depth}"


def _workers(section: Section) -> Table:
    rows = [
        (entrant.system.name, domain or "all", ", ".join(f"{worker} {part:.0%}" for worker, part in shares.items()))
        for entrant in section.entrants
        for domain, shares in chosen(entrant).items()
        if len({worker for row in entrant.rows for worker in row.workers}) > 1
    ]
    return Table(("system", "kind of question", "who did what share of the steps"), tuple(rows))


def _remarks(bench: Bench, section: Section, compared: Sequence[Comparison]) -> list[str]:
    """How much of the way to the oracle each system went that gains on the best single worker."""
    names = {type(entry): name for name, entry in bench.settings.systems.items()}
    single, oracle = names.get(BestSingle), names.get(Oracle)
    if single is None or oracle is None:
        return []
    return [
        f"{way.system} went {way.value:.0%} of the way from {single} to {oracle}"
        f" (95 % interval {way.low:.0%} to {way.high:.0%})."
        for way in ways(section, compared, single=single, oracle=oracle)
    ]


def _plots(section: Section, lines: Sequence[Line]) -> list[Plot]:
    def plot(name: str, title: str, svg: str) -> Plot:
        return Plot(title, f"{DRAWINGS}/{section.pool}-{section.task}-{name}.svg", svg)

    drawn = [plot("tokens", "Right answers against tokens", plots.pareto(lines, "tokens"))]
    if any(one.dollars for one in lines):
        drawn.append(plot("dollars", "Right answers against dollars", plots.pareto(lines, "dollars")))
    if _levels(lines):
        drawn.append(plot("steps", "Steps against depth of the question", plots.depth(lines)))
        drawn.append(plot("depth", "Right answers against depth of the question", plots.accuracy_by_depth(lines)))
    combined = [one for one in section.entrants if len({w for row in one.rows for w in row.workers}) > 1]
    if combined:
        drawn.append(plot("workers", "Who is chosen for what", plots.workers(combined)))
    return drawn
