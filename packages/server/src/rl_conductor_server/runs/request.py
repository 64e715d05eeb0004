"""`AdmittedRequest`: one requested answer, with its effective policy and limits."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

from rl_conductor.types import Request, prompt_in
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy
from rl_conductor_server.auth.budgets import KeyBudget
from rl_conductor_server.catalog import ServedModel
from rl_conductor_server.parsed_request import ParsedRequest
from rl_conductor_server.runs.budgets import SharedLimits
from rl_conductor_server.runs.effective_policy import EFFORTS, check_selectors, merge_policies
from rl_conductor_server.runs.truncation import fit_context
from rl_conductor_server.store import NewRun
from rl_conductor_server.store.models import COMPARISON_APIS
from rl_conductor_server.store.runs.run_id import new_run_id

UNCHECKED = "(guardrails check it)"
"""Stored in place of a question until guardrails have checked it."""
FORMAT_FIELDS: dict[str, bool | set[str]] = {
    "stream": True,
    "usage_in_stream": True,
    "extension": {"trace", "progress"},
    "state": True,
}
"""Fields that don't affect the answer. A retry may change them, so the digest leaves them out."""


@dataclass(frozen=True)
class AdmittedRequest:
    """One requested answer, with its effective policy and limits."""

    key: KeyBudget
    model: ServedModel
    api: str
    parsed: ParsedRequest
    policy: Policy
    limits: Limits
    idempotency_key: str | None = None
    choice: int = 0
    shared_limits: SharedLimits | None = field(default=None, compare=False)
    """`None` if this is the only answer to a request, so that its run has the limits for itself."""
    cache_seconds: int | None = None
    """How old an answer from the response cache may be; `None` disables it."""
    reads_cache: bool = True
    """`False` for a request whose answer must be new, and may be cached for later ones."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything that affects the answer."""
        state = self.parsed.state
        if state is None or state.input_digest is None:
            content = self.parsed.model_dump_json(exclude=FORMAT_FIELDS)
        else:
            content = self.parsed.model_dump_json(exclude=FORMAT_FIELDS | {"request": {"messages"}})
            content = f"{state.conversation} {state.input_digest} {content}"
        return hashlib.sha256(f"{self.api} {content}".encode()).hexdigest()

    @cached_property
    def cache_digest(self) -> str | None:
        """SHA-256 of everything that affects the answer, the model included; `None` if it can't be cached.

        Guardrails must check each answer anew, and the arms of an experiment are compared on answers of their own.
        """
        parsed, conductor = self.parsed, self.model.conductor
        is_cacheable = parsed.keep and not parsed.is_background and self.idempotency_key is None
        if self.cache_seconds is None or not is_cacheable or self.model.arm or conductor.config.guardrails:
            return None
        content = parsed.model_dump_json(exclude=FORMAT_FIELDS | {"labels": True, "ignored": True})
        parts = [self.api, self.model.pinned, self.model.fingerprint, content]
        parts += [self.policy.model_dump_json(), self.limits.model_dump_json()]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @cached_property
    def request(self) -> Request:
        """The request for this choice; each choice has its own seed, so that the answers differ."""
        sampling = self.parsed.request.sampling
        changes: dict[str, object] = {}
        if sampling.seed is not None and self.choice:
            changes["seed"] = sampling.seed + self.choice
        if self.model.arm == "baseline" and self.parsed.effort:  # without orchestration, it is the model's own effort
            changes["effort"] = self.parsed.effort
        if not changes:
            return self.parsed.request
        return self.parsed.request.model_copy(update={"sampling": sampling.model_copy(update=changes)})

    @property
    def question(self) -> str:
        """The user's last message."""
        return prompt_in(self.request.messages)

    @property
    def continues_alone(self) -> bool:
        """`True` if the run goes on without the client, which may ask for its result later."""
        return self.idempotency_key is not None or self.parsed.is_background

    @property
    def is_checked(self) -> bool:
        """`True` if guardrails check the input, so that no text of the request may be stored before."""
        return any("input" in guardrail.stages for guardrail in self.model.conductor.config.guardrails)

    @property
    def may_store_content(self) -> bool:
        """`True` if the trace of the run, or the request, may be stored; answers that call tools are."""
        return self.parsed.keep or self.continues_alone or bool(self.request.tools)

    @property
    def is_comparison(self) -> bool:
        """`True` if it compares the arms of an experiment: no user waits for it or requests it again."""
        return self.api in COMPARISON_APIS

    @property
    def metrics_label(self) -> str:
        """The model's name in metrics; comparisons have labels of their own."""
        return f"{self.model.name} ({self.api})" if self.is_comparison else self.model.name

    def new_run(self, now: float) -> NewRun:
        """Creates the record of its run, which begins `now`, with a new id."""
        return NewRun(
            id=new_run_id(),
            key=self.key.name,
            idempotency_key=self.idempotency_key,
            choice=self.choice,
            digest="" if self.idempotency_key is None else self.digest,
            api=self.api,
            model=self.model.pinned,
            created=now,
            labels=self.parsed.labels,
            question=(UNCHECKED if self.is_checked else self.question) if self.parsed.keep else "",
            arm=self.model.arm,
            cache_digest=self.cache_digest,
            session=self.parsed.session,
        )


def admit(
    key: KeyBudget,
    model: ServedModel,
    api: str,
    parsed: ParsedRequest,
    *,
    idempotency_key: str | None,
    cache_seconds: int | None = None,
    reads_cache: bool = True,
) -> list[AdmittedRequest]:
    """Merges the policies and limits of the model and the request. Returns an admitted request for each choice.

    Raises:
        ConductorError: the policies or limits allow no plan.
    """
    conductor = model.conductor
    requested = parsed.extension.policy
    if requested is not None:
        check_selectors(requested, model.conductors)
    policy = merge_policies(conductor.policy, requested, conductor.pool.cards, planner=conductor.planner.card)
    limits = conductor.limits.lowered(EFFORTS[parsed.effort], parsed.extension.limits)
    may_truncate = parsed.state is not None and parsed.state.may_truncate
    has_changed = policy is not conductor.policy or limits.steps != conductor.limits.steps
    if has_changed or may_truncate:  # else it was checked when the conductor was created
        space = policy.space(conductor.pool.cards, max_steps=limits.steps)
        parsed = fit_context(parsed, conductor.pool, space.final_workers)
    shared = SharedLimits(limits, parsed.choices) if parsed.choices > 1 else None
    return [
        AdmittedRequest(
            key,
            model,
            api,
            parsed,
            policy,
            limits,
            idempotency_key,
            choice,
            shared_limits=shared,
            cache_seconds=cache_seconds,
            reads_cache=reads_cache,
        )
        for choice in range(parsed.choices)
    ]
