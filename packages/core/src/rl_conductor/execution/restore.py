"""Selects the parts of an interrupted run that the current policy still allows. Pure.

The run may have begun under another policy or pool. A reply is dropped when its worker is no longer allowed or may no
longer read its inputs, and so is every reply that was generated from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic_core import to_json

from rl_conductor.errors import ConfigError, WorkflowValidationError
from rl_conductor.planning.recursion import can_read, next_round_space
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker_prompt import last_user
from rl_conductor.trace.trace import Call, PlanRecord, Round, StepResult
from rl_conductor.types import Card, Continuation, Request
from rl_conductor.workflow.policy import Policy
from rl_conductor.workflow.workflow import PlanSpace, Workflow


@dataclass(frozen=True)
class RestoredRound:
    """The results of an interrupted round."""

    results: tuple[StepResult, ...]
    """The results that are reused."""
    abandoned_calls: tuple[Call, ...]
    """Calls of the steps that have to run again."""
    errors: tuple[str, ...]
    """Why replies were dropped."""


@dataclass(frozen=True)
class Rules:
    """A policy applied to a pool, with reasons for the rules that are broken."""

    policy: Policy
    pool: WorkerPool

    def violations(self, workflow: Workflow, space: PlanSpace) -> tuple[str, ...]:
        """Lists the rules of `space` that `workflow` breaks, and the policy fields behind them."""
        violations = space.violations(workflow)
        return (*violations, *self._fields(workflow, space)) if violations else ()

    def continuation_error(self, continuation: Continuation, space: PlanSpace) -> str | None:
        """Returns why a worker may not continue after its tool calls; `None` when it may.

        The message that names the worker may be forged, so it has to be one that may give the answer.
        """
        worker = continuation.worker
        if worker not in space.final_workers:
            return self._why(worker) or f"worker {worker!r} may not give the answer"
        for source in sorted(continuation.sources or ()):
            if why := self._why(source):
                return f"its prompt holds a reply of another worker: {why}"
            if not space.may_read(worker, source):
                return f"its prompt holds a reply of {source!r}: policy.forbid keeps that from {worker!r}"
        return None

    def _why(self, worker: str) -> str:
        if worker not in self.pool:
            return f"the pool has no worker {worker!r}"
        why = self.policy.forbidden_because(self.pool[worker].card)
        return f"worker {worker!r}: {why}" if why else ""

    def _fields(self, workflow: Workflow, space: PlanSpace) -> Iterator[str]:
        workers = dict.fromkeys(step.worker for step in workflow.steps)
        yield from (why for worker in workers if worker in self.pool and (why := self._why(worker)))
        if any(
            not space.may_read(reader, source) for reader in workers for source in (*workers, *(space.recallable or ()))
        ):
            yield "policy.forbid keeps replies of some workers from others"


def restore_results(
    workflow: Workflow, results: Sequence[StepResult], space: PlanSpace, rules: Rules, unchecked: Mapping[int, str]
) -> RestoredRound:
    """Selects the `results` that are reused; the other steps of `workflow`, which `space` allows, run again.

    Args:
        workflow: the plan of the round.
        results: the results of its steps so far.
        space: the plans that the round may have.
        rules: the policy.
        unchecked: by position, the guardrails that did not check a step's reply.
    """
    steps, reused, dropped, errors = list(workflow.steps), [], set[int](), []
    for result in sorted(results, key=lambda result: result.index):
        if result.status != "ok":
            continue
        planned = workflow.steps[result.index] if result.index < len(steps) else None
        if planned != result.step.model_copy(update={"worker": planned.worker if planned else ""}):
            errors.append(f"the reply of step {result.index + 1} is dropped: it belongs to another plan")
            dropped.add(result.index)
            continue
        steps[result.index] = result.step
        violations = rules.violations(Workflow(steps=tuple(steps)), space)
        stale = sorted(dropped & result.step.access)
        unseen = unchecked.get(result.index)
        if violations or stale or unseen:
            steps[result.index] = planned
            dropped.add(result.index)
            why = "; ".join(violations) or (unseen and f"it was not checked by the guardrail {unseen}")
            why = why or f"it was made from the reply of step {stale[0] + 1}"
            errors.append(f"step {result.index + 1} runs again, and its earlier reply is dropped: {why}")
        else:
            reused.append(result)
    repeated = (result for result in results if result not in reused)
    return RestoredRound(tuple(reused), tuple(call for result in repeated for call in result.calls), tuple(errors))


def resumable_rounds(
    rounds: Sequence[Round], first: PlanSpace, rules: Rules, planner: Card
) -> tuple[list[Round], list[str]]:
    """Selects the rounds that are reused, of which the last is resumed, and says why those after it are dropped.

    Calls of dropped rounds are added to the last round's plan, because they have been paid for.
    """
    errors = list(_refused(rounds, first, rules, planner))
    if not errors:
        return list(rounds), []
    end = _first_refused(rounds, first, rules, planner)
    last = rounds[end]
    calls = tuple(call for round_ in rounds[end + 1 :] for call in round_.calls)
    plan = last.plan.model_copy(update={"calls": (*last.plan.calls, *calls)})
    return [*rounds[:end], last.model_copy(update={"plan": plan})], errors


def check_history(rounds: Sequence[Round], first: PlanSpace, rules: Rules, planner: Card) -> None:
    """Checks the rounds before a new one, for a host that stores them itself.

    Raises:
        WorkflowValidationError: the policy does not allow them.
    """
    errors = tuple(_refused((*rounds, Round(plan=PlanRecord(source="planner"))), first, rules, planner))
    if errors:
        raise WorkflowValidationError(*errors)


def check_resumed(workflow: Workflow | None, resume: Sequence[Round]) -> None:
    """Checks that a caller's workflow equals the plan of the run to resume.

    Raises:
        ConfigError: it does not.
    """
    if workflow is not None and resume and resume[-1].plan.is_complete and resume[-1].plan.workflow != workflow:
        raise ConfigError(
            f"workflow=... is not the plan of round {len(resume)} of the run to resume: leave out workflow to go on "
            "with that plan, or leave out resume to run the workflow from its start"
        )


def digest_subject(request: Request) -> str:
    """Computes the SHA-256 of what a request is about: its system messages and its last user message."""
    last = last_user(request.messages)
    parts = [message.text for message in request.messages if message.role == "system"]
    parts.append("" if last is None else request.messages[last].text)
    return hashlib.sha256(to_json(parts)).hexdigest()


def subject_error(request: Request, continuation: Continuation) -> str | None:
    """Returns why the tool results in a request are not for the worker that made the calls; `None` if they are.

    Another agent may have received the conversation, or the host may have shortened or corrected it.
    """
    if continuation.subject not in (None, digest_subject(request)):
        return "the system prompt or the last user message is another one now"
    offered = {tool.name for tool in request.tools}
    calls = next((message.tool_calls for message in reversed(request.messages) if message.role == "assistant"), ())
    missing = sorted({call.name for call in calls} - offered)
    return f"{', '.join(missing)} is not among the tools of the request" if offered and missing else None


def without_continuation(request: Request) -> Request:
    """Removes the continuation from the request, because a conductor in the pool would take it for its own."""
    if all(turn.continuation is None for turn in request.messages):
        return request
    turns = tuple(turn.model_copy(update={"continuation": None}) for turn in request.messages)
    return request.model_copy(update={"messages": turns})


def _refused(rounds: Sequence[Round], first: PlanSpace, rules: Rules, planner: Card) -> Iterator[str]:
    """Yields why rounds before the last are not allowed as they are; nothing if they are."""
    end = _first_refused(rounds, first, rules, planner)
    if end + 1 < len(rounds):
        why = _violations(rounds, end, first, rules) or ("policy.forbid keeps its replies from the planner",)
        yield f"what followed round {end + 1} is dropped: {'; '.join(why)}"


def _first_refused(rounds: Sequence[Round], first: PlanSpace, rules: Rules, planner: Card) -> int:
    """Number of the first round that no other round may follow, or else of the last round."""
    for number in range(len(rounds) - 1):
        if _violations(rounds, number, first, rules):
            return number
        if not can_read(planner, rounds[: number + 1], rules.pool, rules.policy):
            return number
    return len(rounds) - 1


def _violations(rounds: Sequence[Round], number: int, first: PlanSpace, rules: Rules) -> Iterable[str]:
    """Lists the policy rules that a round breaks as it was run, ignoring rules of form and limits."""
    workflow = rounds[number].workflow
    if workflow is None:
        return ()
    space = next_round_space(first, rounds[:number], rules.pool, rules.policy) if number else first
    max_chars = max(len(step.subtask) for step in workflow.steps)
    relaxed = {
        "access": "positional",
        "subtask_chars": max_chars,
        "attachments": (),
        "max_steps": max(space.max_steps, len(workflow.steps)),
    }
    return rules.violations(workflow, space.model_copy(update=relaxed))
