"""`CompactModel`: shortens worker prompts for small base models, by removing delimiters and other steps' subtasks.

On a CPU most of a small model's time is spent on the prompt, half of which are delimiters. Without them a reply that
contains instructions can be told from the prompt by its position only, so use this for small models in closed pools.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from rl_conductor.models import model
from rl_conductor.models.base import WrapperModel
from rl_conductor.prompting.worker_prompt import (
    EVIDENCE_NOTICE,
    SUBTASK,
    SUBTASK_LINE,
    Evidence,
    with_prompt,
    worker_prompt,
)
from rl_conductor.text.delimiters import NONCE_ATTR
from rl_conductor.types import Completion, Delta, Request, prompt_in

# What is inside of a fence holds no tag like its own. To stop at the next one keeps searching linear in the prompt.
_OPENINGS = re.compile(rf"<reply [^<>\n]*{NONCE_ATTR}>\n(?:{SUBTASK_LINE})?")
_FENCES = re.compile(rf"</?(?:reply|passage)\b[^<>\n]*{NONCE_ATTR}>\n?")
_REPLIES = re.compile(rf"{_OPENINGS.pattern}((?:(?!</?reply\b).)*)</reply {NONCE_ATTR}>", re.DOTALL)
_ENDING = SUBTASK.rpartition("{subtask}")[2]


class CompactModel(WrapperModel):
    """Wraps a model and shortens the prompts that it reads."""

    @property
    def name(self) -> str:
        """The name of the wrapped model with a prefix, so that no cache takes the replies of one for the other's."""
        return f"compact:{self.model.name}"

    async def complete(self, request: Request) -> Completion:
        """Returns the model's reply to the shortened request."""
        return await self.model.complete(_compact_request(request))

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Streams the model's reply to the shortened request."""
        async with aclosing(self.model.stream(_compact_request(request))) as deltas:
            async for delta in deltas:
                yield delta


def compact_model(base: str, **options: Any) -> CompactModel:
    """Creates the model `compact:PROVIDER:MODEL`; the options are those of the base model."""
    return CompactModel(model(base, **options))


def _compact_request(request: Request) -> Request:
    return request.model_copy(
        update={"messages": with_prompt(request.messages, compact_prompt(prompt_in(request.messages)))}
    )


def compact_prompt(prompt: str) -> str:
    """Removes delimiters, the subtasks of other steps and the explanations of both from a worker's prompt."""
    without_delimiters = _FENCES.sub("", _OPENINGS.sub("", prompt)).replace(f"{EVIDENCE_NOTICE}\n\n", "")
    return without_delimiters.removesuffix(_ENDING)


def example_prompt(task: str, subtask: str, *replies: str) -> str:
    """Builds a shortened worker prompt for an example."""
    evidence = [Evidence(label="", subtask="", reply=reply) for reply in replies]
    return compact_prompt(worker_prompt(task, evidence, subtask, key="examples"))


def last_reply(prompt: str) -> str | None:
    """Extracts the latest step's reply from a worker's prompt; `None` without one."""
    replies: list[str] = _REPLIES.findall(prompt)
    return replies[-1].removesuffix("\n") if replies else None
