"""`Results`: the runs of one response, with the usage and metadata that the response reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from rl_conductor.trace.summary import Summary
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Usage, total
from rl_conductor_server.access_errors import without_access_errors


@dataclass(frozen=True)
class Results:
    """The finished runs of one response, one for each choice. Sums over their calls are computed once."""

    traces: Sequence[Trace]

    @cached_property
    def summaries(self) -> Sequence[Summary]:
        """The summary of each run."""
        return [Summary.of(trace) for trace in self.traces]

    @cached_property
    def usage(self) -> Usage:
        """The usage of all runs, planning and every step included."""
        return total(summary.usage for summary in self.summaries)

    @property
    def orchestration(self) -> Usage:
        """The part of the usage that was not spent on the calls that wrote the answers."""
        answers = total(_answer_usage(trace) for trace in self.traces)
        names = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "calls")
        return Usage(**{name: getattr(self.usage, name) - getattr(answers, name) for name in names})

    @property
    def breakdown(self) -> dict[str, Any]:
        """The usage in total, of planning and of each worker, as JSON."""
        workers: dict[str, Usage] = {}
        for summary in self.summaries:
            for name, usage in summary.workers.items():
                workers[name] = workers[name] + usage if name in workers else usage
        planning = total(summary.planning for summary in self.summaries)
        return {
            "total": self.usage.model_dump(mode="json"),
            "planning": planning.model_dump(mode="json"),
            "workers": {name: usage.model_dump(mode="json") for name, usage in workers.items()},
        }

    def metadata(self, level: Literal["none", "summary", "full"]) -> dict[str, Any]:
        """Returns the field `conductor` of a response as a mapping: nothing, a summary, or a summary and the trace.

        With several choices, it describes the first one.
        """
        if level == "none":
            return {}
        first = self.traces[0]
        trace = without_access_errors(first, first.calls)
        summary = self.summaries[0] if trace is first else Summary.of(trace)
        full = {"trace": trace.model_dump(mode="json")} if level == "full" else {}
        return {"conductor": summary.model_dump(mode="json") | full}

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP headers that are known only after the runs."""
        headers = {
            "x-conductor-cost-usd": f"{self.usage.cost:f}",
            "x-conductor-plan-depth": str(max(summary.depth for summary in self.summaries)),
        }
        return headers | ({"x-conductor-fallback": "true"} if any(trace.used_fallback for trace in self.traces) else {})


def _answer_usage(trace: Trace) -> Usage:
    if trace.answer is None:
        return Usage()
    result = trace.rounds[trace.answer.round].results[trace.answer.step]
    return next(
        (call.usage for call in reversed(result.calls) if call.outcome == "ok" and call.worker == result.step.worker),
        Usage(),
    )
