"""The report of a learning run: the same tables for the terminal and for `report.html`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rl_conductor._internal.formatting import cost, cost_in_words, counted, seconds
from rl_conductor._internal.io import write_text
from rl_conductor.types import Usage
from rl_conductor.workflow.limits import Limits
from rl_conductor_training.cut_off_replies import cut_off_table
from rl_conductor_training.learn.record import LearnRecord, Proof, ShapeSummary, ValidationResult
from rl_conductor_training.reporting import Table, render
from rl_conductor_training.spending import describe_unanswered

METHOD = (
    "Intervals and tests treat a group of questions as one unit; p is corrected for the number of comparisons (Holm). "
    "“Gain” and “loss” stand only where both exclude zero. The oracle knows which answers are right; nobody can use it."
)


FAILURE_METHOD = (
    "A failed call is tried again where that may help. A run in which a step failed in the end counts as wrong, and "
    "without a planner the fallback plan is run, so another system may be best once these models are reliable."
)


FEEDBACK_METHOD = (
    "Production did not assign workflows to questions at random, and not every answer gets feedback: the rows can't be "
    "compared with one another."
)


def _cost(summary: ValidationResult | ShapeSummary) -> str:
    return cost(Usage(cost=summary.usd, unpriced_calls=summary.unpriced_calls))


def worker_table(record: LearnRecord) -> Table:
    """Builds the table of single workers on the training and validation questions."""
    rows = tuple(
        (worker.name, worker.right.formatted_with_interval, worker.cost, seconds(worker.seconds))
        for worker in record.workers
    )
    return Table(("single worker", "right ± se (95 %)", "$ per question", "time"), rows)


def system_table(proof: Proof) -> Table:
    """Builds the table of systems on the held-out questions."""
    rows = tuple(
        (
            f"{system.name} *" if system.name == proof.recommended else system.name,
            system.description,
            system.right.formatted_with_interval,
            system.cost,
            f"{system.tokens:,.0f}",
            seconds(system.seconds),
        )
        for system in proof.systems
    )
    return Table(("system", "what runs", "right ± se (95 %)", "$", "tokens", "time"), rows)


def validation_table(record: LearnRecord) -> Table:
    """Builds the table of learners on the validation questions."""
    rows = tuple(
        (
            result.name,
            "yes" if result.is_chosen else "no",
            f"{result.right:.2f}",
            _cost(result),
            f"{result.tokens:,.0f}",
            seconds(result.seconds),
        )
        for result in record.validation
    )
    return Table(("learner", "evaluated", "right", "$", "tokens", "time"), rows)


def comparison_table(proof: Proof) -> Table:
    """Builds the table of paired comparisons."""
    rows = tuple(
        (
            result.system,
            result.baseline,
            f"{result.difference.value:+.2f}",
            f"{result.difference.low:+.2f} to {result.difference.high:+.2f}",
            f"{result.difference.p:.3f}",
            result.verdict,
        )
        for result in proof.comparisons
    )
    return Table(("system", "against", "difference", "95 % interval", "p", "verdict"), rows)


def gate_table(record: LearnRecord) -> Table:
    """Builds the table of the room for learning."""
    gate = record.gate
    saving = [("cheapest right workflow: dollars saved", f"{gate.saving:.0%}")] if gate.saving > 0 else []
    return Table(
        (f"training and validation questions ({gate.single.size})", "right ± se (95 %)"),
        (
            (f"best single worker: {gate.best_single}", gate.single.formatted_with_interval),
            (f"best fixed workflow: {gate.best_fixed}", gate.fixed.formatted_with_interval),
            ("oracle: at least one workflow is right", gate.oracle.formatted_with_interval),
            ("fixed over single", gate.fixed_over_single.formatted_with_interval),
            ("oracle over fixed (headroom)", gate.oracle_over_fixed.formatted_with_interval),
            *saving,
        ),
    )


def wrong_answer_table(record: LearnRecord) -> Table:
    """Builds the table of the best fixed workflow's wrong answers."""
    rows = tuple(
        (wrong.question, wrong.expected, wrong.answer or "no answer", f"{wrong.score:g}")
        for wrong in record.wrong_answers
    )
    return Table(("question", "right", "answered", "score"), rows)


def failure_table(record: LearnRecord) -> Table:
    """Builds the table of workers with failed calls, and the planner if calls of it failed."""
    rows = tuple((worker.worker, worker.reason, f"{worker.failed:,} of {worker.calls:,}") for worker in record.failures)
    return Table(("worker", "most frequent reason", "failed calls"), rows)


def feedback_table(shapes: Sequence[ShapeSummary]) -> Table:
    """Builds the table of production workflows by shape."""
    rows = tuple(
        (
            shape.workflow,
            f"{shape.score.n}",
            shape.score.formatted_with_interval,
            _cost(shape),
            seconds(shape.seconds),
        )
        for shape in shapes
    )
    return Table(("workflow in production", "rated", "feedback (95 %)", "$", "time"), rows)


def run_table(record: LearnRecord) -> Table:
    """Builds the table of settings and spending."""
    parts = ", ".join(f"{count} {part}" for part, count in record.questions.items())
    return Table(
        ("", ""),
        (
            ("questions", f"{parts} (in {record.groups} groups, seed {record.seed})"),
            ("workflows tried", f"{record.candidates}, and {record.proposals} plans of the planner"),
            ("caps", describe_caps(record.limits) or "none"),
            ("spent", describe_spending(record)),
            ("wall time", f"{record.seconds / 60:.1f} minutes (of the last process)"),
            ("version", record.package),
        ),
    )


def describe_spending(record: LearnRecord) -> str:
    """Describes the spending of the run; dollars are a lower bound where a price is unknown.

    Of calls that failed or were interrupted, only an upper bound is known, which is named.
    """
    usage = Usage(cost=record.usd, unpriced_calls=record.unpriced_calls)
    spending = f"{cost_in_words(usage)}, {record.tokens:,} tokens, {counted(record.calls, 'call')}"
    return spending + describe_unanswered(record.unanswered_usd, record.unanswered_tokens)


def describe_caps(limits: Limits) -> str:
    """Lists the caps; without any, the text is empty."""
    caps = (
        *([f"${limits.usd}"] if limits.usd is not None else []),
        *([f"{limits.tokens:,} tokens"] if limits.tokens is not None else []),
        *([counted(limits.calls, "call")] if limits.calls is not None else []),
        *([f"{limits.seconds / 60:g} minutes"] if limits.seconds is not None else []),
    )
    return ", ".join(caps)


def write_report(record: LearnRecord, path: Path) -> None:
    """Writes the report as one HTML file.

    Raises:
        ConfigError: the file can't be written.
    """
    proof = record.proof
    html = render(
        "learn.html",
        title=f"Learned conductor: {record.task}",
        record=record,
        run=run_table(record),
        gate=gate_table(record),
        workers=worker_table(record),
        systems=None if proof is None else system_table(proof),
        validation=validation_table(record) if record.validation else None,
        wrong_answers=wrong_answer_table(record),
        failures=failure_table(record) if record.failures else None,
        failure_method=FAILURE_METHOD,
        cut_off=cut_off_table(record.cut_off),
        comparisons=None if proof is None else comparison_table(proof),
        method=METHOD,
    )
    write_text(path, html)
