"""Restricts a plan space to the workers that can serve a request, by the capabilities of their models."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from rl_conductor.errors import PolicyError
from rl_conductor.planning.fallback import fallback_workflow
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.prompting.request_inputs import input_parts, offered_inputs
from rl_conductor.types import Request
from rl_conductor.types.requests import Need
from rl_conductor.workflow.plan_space import AttachmentRule, PlanSpace
from rl_conductor.workflow.request_tokens import min_input_tokens

ATTACHMENTS: tuple[Literal["images", "files"], ...] = ("images", "files")
"""The capabilities to read attachments, which a step other than the last may have."""


def filter_capable(space: PlanSpace, pool: WorkerPool, request: Request) -> PlanSpace:
    """Restricts `space` to the plans that `request` allows.

    - Workers with a context that is certainly too short for the conversation are left out.
    - Workers that can't read its images or files stay, but some step has to be done by one that can.
    - The last step is done by a worker that supports its tools and response format.
    - Of several attachments and long turns, each step may see some only.
    - The planner is told of the tools, which only the last step can call.

    Raises:
        PolicyError: no plan is left.
    """
    needs = request.needs
    space = _with_attachments(_with_answer_needs(_with_room(space, pool, request), pool, needs), pool, needs)
    if space.attachments:
        _check_readable(space, pool)
    return _with_inputs(_with_tools(space, request), request)


def _with_room(space: PlanSpace, pool: WorkerPool, request: Request) -> PlanSpace:
    contexts = {name: context for name in space.choices if (context := pool[name].model.capabilities.context)}
    if not contexts:
        return space
    tokens = min_input_tokens(request)
    too_short = {name: context for name, context in contexts.items() if context <= tokens}
    if not too_short:
        return space
    if set(space.final_workers) <= too_short.keys():
        available = ", ".join(f"{name}: {too_short[name]:,}" for name in space.final_workers)
        raise PolicyError(
            f"the request has {tokens:,} tokens or more, which exceeds the context of every worker that may answer "
            f"({available}); shorten it, or add or allow a worker with a longer context",
            rule="capabilities",
        )
    return space.model_copy(update={"allowed": frozenset(space.allowed - too_short.keys())})


def _with_answer_needs(space: PlanSpace, pool: WorkerPool, needs: Sequence[Need]) -> PlanSpace:
    of_answer = [name for name in needs if name not in ATTACHMENTS]
    if not of_answer:
        return space
    last = _supporting(space.final_workers, pool, of_answer)
    if not last:
        raise _unsupported(of_answer, space.final_workers)
    return space.model_copy(update={"last": last})


def _with_attachments(space: PlanSpace, pool: WorkerPool, needs: Sequence[Need]) -> PlanSpace:
    rules = []
    for kind in ATTACHMENTS:
        if kind in needs:
            readers = _supporting(space.choices, pool, [kind])
            if not readers:
                raise _unsupported([kind], space.choices)
            rules.append(AttachmentRule(kind=kind, readers=readers))
    partial = tuple(rule for rule in rules if rule.readers != frozenset(space.choices))
    return space.model_copy(update={"attachments": partial}) if partial else space


def _with_tools(space: PlanSpace, request: Request) -> PlanSpace:
    if not request.tools or request.tool_choice == "none":
        return space
    return space.model_copy(update={"tools": tuple(tool.name for tool in request.tools)})


def _with_inputs(space: PlanSpace, request: Request) -> PlanSpace:
    parts = input_parts(request.messages)
    if not parts:
        return space
    offered = offered_inputs(parts)
    shared = frozenset(part.name for part in parts) - frozenset(offered)
    return space.model_copy(update={"inputs": offered, "shared_inputs": shared})


def _check_readable(space: PlanSpace, pool: WorkerPool) -> None:
    """Raises `PolicyError` if no plan lets a worker read the attachments and another one answer."""
    try:
        fallback_workflow(space, pool)
    except PolicyError as error:
        rules = " and ".join(f"{rule.kind} ({', '.join(sorted(rule.readers))} can)" for rule in space.attachments)
        raise PolicyError(
            f"the request needs a worker that reads its {rules}, but no plan of at most {space.max_steps} steps lets "
            f"that reach the answer of {' or '.join(space.final_workers)}: {error}; allow more steps or other workers",
            rule="capabilities",
        ) from None


def _supporting(names: Sequence[str], pool: WorkerPool, needs: Collection[str]) -> frozenset[str]:
    capabilities = {name: pool[name].model.capabilities for name in names}
    return frozenset(name for name in names if all(getattr(capabilities[name], need) for need in needs))


def _unsupported(needs: Sequence[str], candidates: Sequence[str]) -> PolicyError:
    return PolicyError(
        f"the request needs {' and '.join(needs)}, which no worker that may answer takes ({', '.join(candidates)}); "
        "add or allow one that does, or correct the capabilities of one",
        rule="capabilities",
    )
