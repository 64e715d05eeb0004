"""Sends feedback on an answer to a conductor's server; the arguments are those of LangSmith's `create_feedback`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import httpx
from langchain_core.messages import BaseMessage

from rl_conductor.errors import ConductorError, ConfigError
from rl_conductor.trace import Feedback

REPLY_ID = re.compile(r"(?:chatcmpl-|resp_|msg_)([0-9a-f]{16})")
"""Ids of the server's replies in the vendors' APIs; they contain the run's id."""
RUN_ID = re.compile(r"run-[0-9a-f]{16}")


def run_id(message: BaseMessage) -> str:
    """Returns the id of the run that gave an answer.

    Args:
        message: an answer of a `ChatConductor`, or of a chat model such as `ChatOpenAI` whose `base_url` is a
            conductor's server.

    Raises:
        ConfigError: the message comes from another model.
    """
    metadata = message.response_metadata
    summary = metadata.get("conductor")
    run = summary.get("run") if isinstance(summary, dict) else None
    if isinstance(run, str) and RUN_ID.fullmatch(run):
        return run
    for reply in (metadata.get("id"), message.id):
        if isinstance(reply, str) and (match := REPLY_ID.fullmatch(reply)):
            return f"run-{match[1]}"
    raise ConfigError("the message has no run id: it is no answer of a conductor; write the run's id instead")


def create_feedback(
    run: BaseMessage | str,
    key: str = "user_score",
    *,
    score: float,
    comment: str = "",
    base_url: str,
    api_key: str = "",
    timeout: float = 30.0,
) -> Feedback:
    """Rates a run; the same `key` again replaces the rating.

    Args:
        run: the answer, or the run's id.
        key: name of the criterion.
        score: from 0, useless, to 1, right.
        comment: at most 2,000 characters.
        base_url: the server, such as `https://conductor.example/v1`.
        api_key: the API key that paid for the run.
        timeout: in seconds.

    Raises:
        ConfigError: the server rejected it, for example because the run belongs to another key.
        ConductorError: the server did not answer.
    """
    request = _FeedbackRequest.of(run, {"key": key, "score": score, "comment": comment}, base_url, api_key)
    try:
        return request.parse(httpx.post(request.url, json=request.body, headers=request.headers, timeout=timeout))
    except httpx.HTTPError as error:
        raise request.unreachable(error) from error


async def acreate_feedback(
    run: BaseMessage | str,
    key: str = "user_score",
    *,
    score: float,
    comment: str = "",
    base_url: str,
    api_key: str = "",
    timeout: float = 30.0,  # noqa: ASYNC109  like the sync version
) -> Feedback:
    """Rates a run; see `create_feedback`.

    Raises:
        ConfigError: the server rejected it.
        ConductorError: the server did not answer.
    """
    request = _FeedbackRequest.of(run, {"key": key, "score": score, "comment": comment}, base_url, api_key)
    try:
        async with httpx.AsyncClient(timeout=timeout) as client:
            return request.parse(await client.post(request.url, json=request.body, headers=request.headers))
    except httpx.HTTPError as error:
        raise request.unreachable(error) from error


@dataclass(frozen=True)
class _FeedbackRequest:
    url: str
    body: dict[str, Any]
    headers: dict[str, str]

    @classmethod
    def of(cls, run: BaseMessage | str, body: dict[str, Any], base_url: str, api_key: str) -> _FeedbackRequest:
        run = run if isinstance(run, str) else run_id(run)
        if not RUN_ID.fullmatch(run):
            raise ConfigError(f"{run!r} is no run id; write one such as 'run-3f2a9c0d1b7e4a55', or pass the answer")
        server = base_url.rstrip("/").removesuffix("/v1")
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        return cls(f"{server}/v1/runs/{run}/feedback", body, headers)

    def parse(self, response: httpx.Response) -> Feedback:
        try:
            reply = response.json()
            if response.is_success:
                return Feedback.model_validate({name: reply[name] for name in Feedback.model_fields})
            message = reply["error"]["message"]
        except (ValueError, KeyError, TypeError) as error:
            raise ConductorError(f"{self.url} is no conductor's server: status {response.status_code}") from error
        raise ConfigError(f"the server rejected the feedback: {message}")

    def unreachable(self, error: httpx.HTTPError) -> ConductorError:
        return ConductorError(f"no feedback was sent: {self.url} does not answer ({type(error).__name__})")
