"""`/v1/runs/RUN/feedback` and `/admin/runs/RUN/feedback`: ratings of runs by their users and by the administrator."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal, Self

from fastapi import APIRouter, Request
from pydantic import Field, model_validator

from rl_conductor.trace.feedback import DEFAULT_KEY, Comment, Feedback, FeedbackKey, UnitScore
from rl_conductor_server.auth.keys import ADMINISTRATOR
from rl_conductor_server.endpoints.bodies import read_as
from rl_conductor_server.endpoints.dependencies import ADMIN_ONLY, Caller, RunId, ServiceDependency, json_body
from rl_conductor_server.errors import ApiError, run_not_found
from rl_conductor_server.request_validation.parsing import Body
from rl_conductor_server.service import Service
from rl_conductor_server.store.runs.feedback import MAX_KEYS

router = APIRouter()
MAX_BODY_BYTES = 32 * 2**10
THUMBS: dict[str, float] = {"up": 1.0, "down": 0.0}


class FeedbackBody(Body):
    """The body of a request that rates a run: by a score or a thumb."""

    key: FeedbackKey = DEFAULT_KEY
    score: UnitScore | None = Field(default=None, strict=True)
    thumb: Literal["up", "down"] | None = None
    comment: Comment = ""

    @model_validator(mode="after")
    def _check_rating(self) -> Self:
        if (self.score is None) == (self.thumb is None):
            raise ValueError('needs either "score", from 0 to 1, or "thumb", "up" or "down"')
        return self

    def to_feedback(self, author: str) -> Feedback:
        """Converts the body to the feedback of `author`."""
        score = THUMBS[self.thumb] if self.thumb is not None else self.score
        assert score is not None
        return Feedback(author=author, key=self.key, score=score, comment=self.comment, updated=datetime.now(UTC))


@router.post("/v1/runs/{run}/feedback", openapi_extra=json_body(FeedbackBody))
async def add_feedback(run: RunId, http: Request, service: ServiceDependency, key: Caller) -> dict[str, Any]:
    """Rates a run of this API key."""
    key.check_rate()
    await check_run(service, run, key=key.name)
    return _feedback_body(run, await store_feedback(service, run, await _read_feedback(http, service, key.name)))


@router.get("/v1/runs/{run}/feedback")
async def list_feedback(run: RunId, service: ServiceDependency, key: Caller) -> dict[str, Any]:
    """Lists the feedback on a run of this API key."""
    await check_run(service, run, key=key.name)
    return await _feedback_list(service, run)


@router.post("/admin/runs/{run}/feedback", dependencies=ADMIN_ONLY, openapi_extra=json_body(FeedbackBody))
async def add_administrators_feedback(run: RunId, http: Request, service: ServiceDependency) -> dict[str, Any]:
    """Rates the run of any key."""
    await check_run(service, run)
    return _feedback_body(run, await store_feedback(service, run, await _read_feedback(http, service, ADMINISTRATOR)))


@router.get("/admin/runs/{run}/feedback", dependencies=ADMIN_ONLY)
async def list_any_feedback(run: RunId, service: ServiceDependency) -> dict[str, Any]:
    """Lists the feedback on the run of any key."""
    await check_run(service, run)
    return await _feedback_list(service, run)


async def check_run(service: Service, run: str, *, key: str | None = None) -> None:
    """Checks that the run exists; with `key`, that it belongs to that API key.

    Raises:
        ApiError: there is no such run.
    """
    if await service.store.get_run(run, key=key) is None:
        raise run_not_found(run)


async def store_feedback(service: Service, run: str, feedback: Feedback) -> Feedback:
    """Stores feedback and returns the stored version.

    Raises:
        ApiError: the run was deleted meanwhile, its author has used too many keys, or there were too many changes.
    """
    limit = service.settings.feedback.run_changes
    if feedback.author != ADMINISTRATOR and await service.store.feedback.count_changes(run) > limit:
        message = f"the feedback on run {run!r} was changed {limit} times, which is the maximum"
        raise ApiError(message, status=429, code="too_many_changes")
    stored = await service.store.feedback.put(run, feedback)
    if stored is None:
        await check_run(service, run)
        message = f"run {run!r} has feedback by {MAX_KEYS} keys of {feedback.author!r}; reuse one of them"
        raise ApiError(message, status=409, code="too_many_keys", param="key")
    return stored


async def _read_feedback(http: Request, service: Service, author: str) -> Feedback:
    body = await read_as(FeedbackBody, http, service, max_bytes=MAX_BODY_BYTES)
    return body.to_feedback(author)


async def _feedback_list(service: Service, run: str) -> dict[str, Any]:
    return {"object": "list", "data": [_feedback_body(run, entry) for entry in await service.store.feedback.list(run)]}


def _feedback_body(run: str, feedback: Feedback) -> dict[str, Any]:
    return {"object": "feedback", "run": run, **feedback.model_dump(mode="json")}
