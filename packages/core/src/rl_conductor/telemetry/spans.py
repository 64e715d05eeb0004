"""Starts and ends the spans of one run on its events.

A run is an `invoke_workflow` span. Its children are `plan` and, for each step, `invoke_agent`, linked to the steps in
its access list; their children are a `chat` span for each attempt. Inside of that are the `chat` and `execute_tool`
spans of an agent's calls and tools, and the `invoke_workflow` span of a conductor in the pool, which is a run itself.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import takewhile

from opentelemetry import context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from rl_conductor.telemetry import content
from rl_conductor.telemetry import conventions as name
from rl_conductor.telemetry.attributes import (
    Attributes,
    error_attributes,
    model_attributes,
    sampling_attributes,
    usage_attributes,
)
from rl_conductor.trace.events import (
    Event,
    Finished,
    PlanRejected,
    PlanStarted,
    StepFinished,
    StepStarted,
    WorkflowPlanned,
)
from rl_conductor.trace.observers import RunInfo
from rl_conductor.trace.outcomes import CANCELLED, FAILURES
from rl_conductor.trace.trace import Call, Nested, PlanRecord, StepResult, Trace

BLOCKED = "guardrail"
SECOND = 1_000_000_000


@dataclass
class _Step:
    """The open spans of one step."""

    span: Span
    attempts: dict[tuple[str, int], Span] = field(default_factory=dict)
    """By worker and attempt number."""


class RunSpans:
    """Listener that records one run as spans."""

    def __init__(self, tracer: Tracer, run_info: RunInfo, *, with_content: bool) -> None:
        self._tracer = tracer
        self._run_info = run_info
        self._with_content = with_content
        self._zero = time.time_ns() - int(run_info.elapsed * SECOND)
        self._plans: dict[int, Span] = {}
        self._steps: dict[tuple[int, int], _Step] = {}
        self._links: dict[tuple[int, int], Link] = {}
        attributes: Attributes = {name.OPERATION: name.INVOKE_WORKFLOW, name.WORKFLOW: run_info.conductor}
        attributes[name.RUN] = run_info.id
        self.span = tracer.start_span(f"{name.INVOKE_WORKFLOW} {run_info.conductor}", attributes=attributes)
        """The run's own span, a child of the caller's."""
        self.is_finished = False

    def __call__(self, event: Event) -> None:
        """Starts and ends spans as `event` requires."""
        match event:
            case PlanStarted():
                self._plan_started(event.round)
            case PlanRejected():
                self._drop_steps(event.round)
            case WorkflowPlanned():
                self._planned(event.round, event.plan)
            case StepStarted():
                self._attempt(event)
            case StepFinished():
                self._step_finished(event.round, event.result)
            case Finished():
                self._finished(event.trace)
            case _:
                pass

    # ---------------------------------------------------------------------------------------- plans

    def _plan_started(self, number: int) -> None:
        attributes: Attributes = {name.OPERATION: name.PLAN, name.AGENT: self._run_info.conductor, name.ROUND: number}
        span = self._start_child(self.span, f"{name.PLAN} {self._run_info.conductor}", attributes)
        self._plans[number] = span
        make_current(span)

    def _planned(self, number: int, plan: PlanRecord) -> None:
        self._end_plan(number, plan)
        make_current(self.span)

    def _end_plan(self, number: int, plan: PlanRecord) -> None:
        span = self._plans.pop(number, None)
        if span is None:  # there was no planning, or only before the run was interrupted
            return
        for call in plan.calls:
            if call.worker is None:
                self._end_call(self._chat(span, call.model, start=self._at(call.started)), call)
        span.set_attribute(name.SOURCE, plan.source)
        span.set_attribute(name.SAMPLES, sum(call.worker is None for call in plan.calls))
        span.set_attribute(name.CONSTRAINED, plan.constrained)
        if plan.workflow is not None:
            span.set_attribute(name.STEPS, len(plan.workflow.steps))
        if plan.source != "planner" or CANCELLED in plan.errors:
            fail(span, CANCELLED if CANCELLED in plan.errors else "no_plan")
        span.end()

    # ---------------------------------------------------------------------------------------- steps

    def _attempt(self, event: StepStarted) -> None:
        step = self._step(event.round, event.index, event.worker, event.access)
        span = self._chat(step.span, self._run_info.workers[event.worker])
        span.set_attribute(name.ATTEMPT, event.attempt)
        abandoned = step.attempts.pop((event.worker, event.attempt), None)
        if abandoned is not None:  # the step started early and is not in the plan
            end_failed(abandoned, CANCELLED)
        step.attempts[event.worker, event.attempt] = span
        make_current(span)

    def _step(self, number: int, index: int, worker: str, access: Collection[int]) -> _Step:
        if (number, index) not in self._steps:
            attributes: Attributes = {name.OPERATION: name.INVOKE_AGENT, name.AGENT: worker, name.ROUND: number}
            attributes |= {name.STEP: index, name.ACCESS: sorted(access)}
            links = [self._links[number, source] for source in sorted(access) if (number, source) in self._links]
            span = self._start_child(self.span, f"{name.INVOKE_AGENT} {worker}", attributes, links=links)
            self._steps[number, index] = _Step(span)
            self._links[number, index] = Link(span.get_span_context())
        return self._steps[number, index]

    def _step_finished(self, number: int, result: StepResult) -> None:
        make_current(self.span)
        if result.status == "failed":
            # A limit may have refused it before its first attempt.
            self._step(number, result.index, result.step.worker, result.step.access)
        step = self._steps.pop((number, result.index), None)
        if step is None:  # skipped, or finished before the run was interrupted
            return
        attempts: Counter[str] = Counter()
        for call in _calls_since_pause(result):
            worker = str(call.worker)
            attempts[worker] += 1
            span = step.attempts.pop((worker, attempts[worker]), None)
            if span is not None:
                self._end_call(span, call)
        if result.step.worker != result.planned_worker:
            step.span.update_name(f"{name.INVOKE_AGENT} {result.step.worker}")
            step.span.set_attribute(name.AGENT, result.step.worker)
            step.span.set_attribute(name.PLANNED_WORKER, result.planned_worker)
        if result.status != "ok":
            fail(step.span, _failure(result))
        _end(step)

    def _drop_steps(self, number: int) -> None:
        for place in [place for place in self._steps if place[0] == number]:
            step = self._steps.pop(place)
            fail(step.span, CANCELLED)
            _end(step)

    # ------------------------------------------------------------------------------------------ run

    def _finished(self, trace: Trace) -> None:
        for number, round_ in enumerate(trace.rounds):
            self._end_plan(number, round_.plan)
            self._drop_steps(number)
        self.span.set_attributes(usage_attributes(trace.usage))
        if trace.answer is not None:
            self.span.set_attribute(name.ANSWER, trace.answer.source)
        self._set_content(self.span, trace)
        for kind in error_attributes(trace).values():
            fail(self.span, str(kind))
        self.is_finished = True

    def _end_call(self, span: Span, call: Call) -> None:
        span.set_attributes(usage_attributes(call.usage))
        if call.request is not None:
            span.set_attributes(sampling_attributes(call.request))
        if call.completion is not None:
            span.set_attribute(name.RESPONSE_MODEL, call.completion.model)
            span.set_attribute(name.FINISH_REASONS, [call.completion.finish_reason])
        self._set_content(span, call)
        if call.nested is not None:
            self._add_nested(span, call.nested)
        if call.outcome in FAILURES:
            fail(span, call.outcome)
        span.end(self._at(call.started + call.seconds))

    def _add_nested(self, parent: Span, nested: Nested) -> None:
        """Records an agent's calls and tools; conductors inside of a call have recorded themselves."""
        for call in nested.calls:
            self._end_call(self._chat(parent, call.model, start=self._at(call.started)), call)
        for tool in nested.tools:
            attributes: Attributes = {name.OPERATION: name.EXECUTE_TOOL, name.TOOL: tool.name}
            if self._with_content:
                attributes |= {name.TOOL_ARGUMENTS: tool.arguments, name.TOOL_RESULT: tool.result}
            title, start = f"{name.EXECUTE_TOOL} {tool.name}", self._at(tool.started)
            span = self._start_child(parent, title, attributes, start=start)
            if tool.is_error:
                fail(span, "tool_error")
            span.end(self._at(tool.started + tool.seconds))

    def _set_content(self, span: Span, source: Call | Trace) -> None:
        if not self._with_content:
            return
        if source.request is not None:
            span.set_attribute(name.INPUT_MESSAGES, content.input_messages(source.request.messages))
        if source.completion is not None:
            span.set_attribute(name.OUTPUT_MESSAGES, content.output_messages(source.completion))

    # ---------------------------------------------------------------------------------------- spans

    def _chat(self, parent: Span, model: str, *, start: int | None = None) -> Span:
        attributes = {name.OPERATION: name.CHAT, **model_attributes(model)}
        title = f"{name.CHAT} {attributes[name.REQUEST_MODEL]}"
        return self._start_child(parent, title, attributes, kind=SpanKind.CLIENT, start=start)

    def _start_child(
        self,
        parent: Span,
        title: str,
        attributes: Attributes,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Iterable[Link] = (),
        start: int | None = None,
    ) -> Span:
        return self._tracer.start_span(
            title,
            set_span_in_context(parent),
            kind=kind,
            attributes=attributes,
            links=tuple(links),
            start_time=start,
        )

    def _at(self, seconds: float) -> int:
        """Converts seconds since the run began to nanoseconds since 1970."""
        return self._zero + int(seconds * SECOND)


def make_current(span: Span) -> None:
    """Makes `span` the parent of spans that this task starts from now on."""
    context.attach(set_span_in_context(span))


def fail(span: Span, kind: str) -> None:
    """Marks a span as failed, without the message, because vendors may quote the prompt in it."""
    span.set_attribute(name.ERROR, kind)
    span.set_status(Status(StatusCode.ERROR))


def end_failed(span: Span, kind: str) -> None:
    """Marks a span as failed and ends it."""
    fail(span, kind)
    span.end()


def _end(step: _Step) -> None:
    for span in step.attempts.values():
        end_failed(span, CANCELLED)
    step.span.end()


def _calls_since_pause(result: StepResult) -> list[Call]:
    """Returns the calls of the step's worker since it was resumed, if it had paused: spans of earlier ones are gone."""
    calls = takewhile(lambda call: call.outcome != "paused", reversed(result.calls))
    return [call for call in reversed(list(calls)) if not call.is_check]


def _failure(result: StepResult) -> str:
    """Returns the type of error of a failed step."""
    if any(check.is_blocking for check in result.checks):
        return BLOCKED
    return result.calls[-1].outcome if result.calls else CANCELLED
