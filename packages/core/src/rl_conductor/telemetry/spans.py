"""The spans of one run, begun and ended as its events come.

A run is `invoke_workflow`; below it stand `plan` and, for each step, `invoke_agent`, linked to the steps that it reads;
below those, a `chat` for each attempt.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from opentelemetry import context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from rl_conductor.telemetry import content
from rl_conductor.telemetry import conventions as name
from rl_conductor.telemetry.attributes import Attributes, asked_of, error_of, model_of, usage_of
from rl_conductor.trace.events import (
    Event,
    Finished,
    PlanRejected,
    PlanStarted,
    StepFinished,
    StepStarted,
    WorkflowPlanned,
)
from rl_conductor.trace.observers import Begun
from rl_conductor.trace.trace import Call, PlanRecord, StepResult, Trace
from rl_conductor.workflow.workflow import Workflow

CANCELLED = "cancelled"
SECOND = 1_000_000_000


@dataclass
class _Step:
    """A step that has begun."""

    span: Span
    attempts: dict[tuple[str, int], Span] = field(default_factory=dict)
    """By worker, and the number of its attempt."""


class RunSpans:
    """Listens to one run."""

    def __init__(self, tracer: Tracer, begun: Begun, *, with_content: bool) -> None:
        self._tracer = tracer
        self._begun = begun
        self._with_content = with_content
        self._zero = time.time_ns() - int(begun.elapsed * SECOND)
        self._plans: dict[int, Span] = {}
        self._workflows: dict[int, Workflow] = {}
        self._steps: dict[tuple[int, int], _Step] = {}
        self._links: dict[tuple[int, int], Link] = {}
        known: Attributes = {name.OPERATION: name.INVOKE_WORKFLOW, name.WORKFLOW: begun.conductor, name.RUN: begun.id}
        self.span = tracer.start_span(f"{name.INVOKE_WORKFLOW} {begun.conductor}", attributes=known)
        """Of the run itself, inside of the caller's."""
        self.over = False

    def __call__(self, event: Event) -> None:
        """Begin and end what the event begins and ends."""
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
        known: Attributes = {name.OPERATION: name.PLAN, name.AGENT: self._begun.conductor, name.ROUND: number}
        span = self._below(self.span, f"{name.PLAN} {self._begun.conductor}", known)
        self._plans[number] = span
        make_current(span)

    def _planned(self, number: int, plan: PlanRecord) -> None:
        if plan.workflow is not None:
            self._workflows[number] = plan.workflow
        self._end_plan(number, plan)
        make_current(self.span)

    def _end_plan(self, number: int, plan: PlanRecord) -> None:
        span = self._plans.pop(number, None)
        if span is None:  # nobody planned, or somebody did before the run was interrupted
            return
        for call in plan.calls:
            if call.worker is None:
                self._end_call(self._chat(span, call.model, start=self._at(call.started)), call)
        span.set_attribute(name.SOURCE, plan.source)
        span.set_attribute(name.SAMPLES, sum(call.worker is None for call in plan.calls))
        span.set_attribute(name.CONSTRAINED, plan.constrained)
        if plan.workflow is not None:
            span.set_attribute(name.STEPS, len(plan.workflow.steps))
        if plan.source != "planner" or "cancelled" in plan.errors:
            fail(span, CANCELLED if "cancelled" in plan.errors else "no_plan")
        span.end()

    # ---------------------------------------------------------------------------------------- steps

    def _attempt(self, event: StepStarted) -> None:
        step = self._step(event.round, event.index, event.worker)
        span = self._chat(step.span, self._begun.workers[event.worker])
        span.set_attribute(name.ATTEMPT, event.attempt)
        again = step.attempts.pop((event.worker, event.attempt), None)
        if again is not None:  # it was begun ahead of a plan that had no use for it
            end_failed(again, CANCELLED)
        step.attempts[event.worker, event.attempt] = span
        make_current(span)

    def _step(self, number: int, index: int, worker: str) -> _Step:
        if (number, index) not in self._steps:
            known: Attributes = {name.OPERATION: name.INVOKE_AGENT, name.AGENT: worker, name.ROUND: number}
            known |= {name.STEP: index, name.ACCESS: self._access(number, index)}
            links = [self._links[number, seen] for seen in self._access(number, index) if (number, seen) in self._links]
            span = self._below(self.span, f"{name.INVOKE_AGENT} {worker}", known, links=links)
            self._steps[number, index] = _Step(span)
            self._links[number, index] = Link(span.get_span_context())
        return self._steps[number, index]

    def _access(self, number: int, index: int) -> list[int]:
        """What a step may read; nothing where its plan is still being written, since only a first step runs then."""
        workflow = self._workflows.get(number)
        return sorted(workflow.steps[index].access) if workflow else []

    def _step_finished(self, number: int, result: StepResult) -> None:
        make_current(self.span)
        if result.status == "failed":
            self._step(number, result.index, result.step.worker)  # limits may have refused it before it began
        step = self._steps.pop((number, result.index), None)
        if step is None:  # skipped, or done before the run was interrupted
            return
        attempts: Counter[str] = Counter()
        for call in result.calls:
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
            fail(step.span, result.calls[-1].outcome if result.calls else CANCELLED)
        _end(step)

    def _drop_steps(self, number: int) -> None:
        for place in [place for place in self._steps if place[0] == number]:
            step = self._steps.pop(place)
            fail(step.span, CANCELLED)
            _end(step)

    # ------------------------------------------------------------------------------------------ run

    def _finished(self, trace: Trace) -> None:
        for number, one in enumerate(trace.rounds):
            self._end_plan(number, one.plan)
            self._drop_steps(number)
        self.span.set_attributes(usage_of(trace.usage))
        if trace.answer is not None:
            self.span.set_attribute(name.ANSWER, trace.answer.source)
        self._say(self.span, trace)
        for kind in error_of(trace).values():
            fail(self.span, str(kind))
        self.over = True

    def _end_call(self, span: Span, call: Call) -> None:
        span.set_attributes(usage_of(call.usage))
        if call.request is not None:
            span.set_attributes(asked_of(call.request))
        if call.completion is not None:
            span.set_attribute(name.RESPONSE_MODEL, call.completion.model)
            span.set_attribute(name.FINISH_REASONS, [call.completion.finish_reason])
        self._say(span, call)
        if call.outcome != "ok":
            fail(span, call.outcome)
        span.end(self._at(call.started + call.seconds))

    def _say(self, span: Span, said: Call | Trace) -> None:
        if not self._with_content:
            return
        if said.request is not None:
            span.set_attribute(name.INPUT_MESSAGES, content.input_messages(said.request.messages))
        if said.completion is not None:
            span.set_attribute(name.OUTPUT_MESSAGES, content.output_messages(said.completion))

    # ---------------------------------------------------------------------------------------- spans

    def _chat(self, parent: Span, model: str, *, start: int | None = None) -> Span:
        known = {name.OPERATION: name.CHAT, **model_of(model)}
        title = f"{name.CHAT} {known[name.REQUEST_MODEL]}"
        return self._below(parent, title, known, kind=SpanKind.CLIENT, start=start)

    def _below(
        self,
        parent: Span,
        title: str,
        known: Attributes,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Iterable[Link] = (),
        start: int | None = None,
    ) -> Span:
        inside = set_span_in_context(parent)
        return self._tracer.start_span(title, inside, kind=kind, attributes=known, links=tuple(links), start_time=start)

    def _at(self, seconds: float) -> int:
        """Nanoseconds since 1970 of a moment of the run."""
        return self._zero + int(seconds * SECOND)


def make_current(span: Span) -> None:
    """What is begun from here on in this task, by whomever, stands below `span`."""
    context.attach(set_span_in_context(span))


def fail(span: Span, kind: str) -> None:
    """Mark a span as failed. The message stays out: a vendor's may quote what it was asked."""
    span.set_attribute(name.ERROR, kind)
    span.set_status(Status(StatusCode.ERROR))


def end_failed(span: Span, kind: str) -> None:
    """End a span that came to nothing."""
    fail(span, kind)
    span.end()


def _end(step: _Step) -> None:
    for span in step.attempts.values():
        end_failed(span, CANCELLED)
    step.span.end()
