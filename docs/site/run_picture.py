"""Draws a saved run as an SVG picture, with the graph layout of the server's web pages.

    rl-conductor ask --save run.json "..."
    python docs/site/run_picture.py run.json > run.svg

The first screen of the site shows `docs/site/first-run.json` in this way.
"""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path
from textwrap import shorten, wrap

from rl_conductor import Trace, Workflow
from rl_conductor.trace import StepResult
from rl_conductor_server.web.graph_layout import GraphLayout, critical_steps, horizontal_layout

MARGIN = 20
HEADER = 104
FOOTER = 64
STYLE = """
svg { font-family: system-ui, sans-serif; font-size: 13px; --text: #1f2430; --muted: #5b6270; --accent: #4051b5;
      --box: #fff; --page: #f6f7fb; --line: #c4c9d6 }
@media (prefers-color-scheme: dark) {
  svg { --text: #e8eaf0; --muted: #a8afbd; --accent: #9aa8ff; --box: #262a35; --page: #1b1e26; --line: #4a5160 }
}
text { fill: var(--text) } .muted { fill: var(--muted); font-size: 12px } .strong { font-weight: 600; font-size: 15px }
.page { fill: var(--page) } .box { fill: var(--box); stroke: var(--line) }
.edge { fill: none; stroke: var(--line); stroke-width: 1.5 }
.critical { stroke: var(--accent); stroke-width: 2.5 }
"""


def run_svg(trace: Trace) -> str:
    """Returns a picture of a run: its question, the steps of its last plan, and its answer.

    Raises:
        ValueError: The run has no plan.
    """
    workflow = trace.rounds[-1].workflow if trace.rounds else None
    if workflow is None:
        raise ValueError("the run has no plan: save one with `rl-conductor ask --save run.json`")
    results = trace.rounds[-1].results
    critical = critical_steps(workflow, [result.seconds for result in results])
    layout = horizontal_layout(workflow, critical)
    width, height = layout.width + 2 * MARGIN, layout.height + HEADER + FOOTER
    question, answer = trace.request.messages[-1].text, plain(trace.text)
    boxes = "".join(step_box(layout, result, result.index in critical) for result in results)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(description(workflow, question, answer))}"><style>{STYLE}</style>'
        f'<rect class="page" width="100%" height="100%" rx="10"/>'
        f"{headline(question, width)}{line(MARGIN, 76, planning_summary(trace), 'muted', width)}"
        f'<g transform="translate({MARGIN} {HEADER - 12})">{edges(layout)}{boxes}</g>'
        f"{line(MARGIN, height - 36, answer, 'strong', width)}"
        f"{line(MARGIN, height - 15, run_summary(trace), 'muted', width)}</svg>\n"
    )


def edges(layout: GraphLayout) -> str:
    """Draws the edges; those of the critical path are thick."""
    return "".join(f'<path class="edge{" critical" * edge.critical}" d="{edge.path}"/>' for edge in layout.edges)


def step_box(layout: GraphLayout, result: StepResult, is_critical: bool) -> str:
    """Draws one step: its worker, its subtask, and what it took."""
    x, y = layout.corners[result.index]
    subtask = wrap(result.step.subtask, 32, max_lines=2, placeholder=" …")
    tokens = sum(call.usage.total_tokens for call in result.calls)
    took = f"{result.status} · {result.seconds:.1f} s · {tokens:,} tokens"
    texts: list[tuple[float, str, str]] = [(26, f"{result.index + 1} {result.step.worker}", "strong")]
    texts += [(48 + 18 * number, part, "") for number, part in enumerate(subtask)]
    texts += [(layout.box.height - 12, took, "muted")]
    rectangle = f'<rect class="box{" critical" * is_critical}" x="{x:g}" y="{y:g}" width="{layout.box.width:g}"'
    rectangle += f' height="{layout.box.height:g}" rx="8"/>'
    return rectangle + "".join(line(x + 14, y + down, text, kind, 1_000) for down, text, kind in texts)


def headline(question: str, width: float) -> str:
    """Draws the question, on at most two lines."""
    lines = wrap(question, int(width / 9.5), max_lines=2, placeholder=" …")
    return "".join(line(MARGIN, 32 + 20 * number, part, "strong", 1_000) for number, part in enumerate(lines))


def line(x: float, y: float, text: str, kind: str, width: float) -> str:
    """Draws a line of text that is shortened to the width of the picture."""
    text = shorten(text, max(20, int(width / 7.4)), placeholder=" …")
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(text)}</text>'


def planning_summary(trace: Trace) -> str:
    """Summarises the calls of the planner."""
    calls = trace.rounds[-1].plan.calls
    return f"planned by {trace.planner} in {sum(call.seconds for call in calls):.1f} s"


def run_summary(trace: Trace) -> str:
    """Summarises the whole run."""
    usage = trace.usage
    return f"{usage.calls} calls · {usage.total_tokens:,} tokens · ${usage.cost} · {trace.seconds:.1f} s"


def plain(answer: str) -> str:
    r"""Removes the LaTeX around a number, as in `\(\boxed{51}\)`."""
    return re.sub(r"\\\(\\boxed{(.*?)}\\\)", r"\1", answer)


def description(workflow: Workflow, question: str, answer: str) -> str:
    """Describes the picture for readers who cannot see it."""
    steps = [f"step {number}, {step.worker}: {step.subtask}" for number, step in enumerate(workflow.steps, 1)]
    return f"{question} {'; '.join(steps)} Answer: {answer}"


if __name__ == "__main__":
    saved = Trace.model_validate_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.stdout.write(run_svg(saved))
