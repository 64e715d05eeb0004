"""What a worker's prompt says, without its fences; and `CompactModel`, which shows small base models no more than that.

Reading is what costs a small model on a processor most, and half of a worker's prompt are fences. Without their marks
a reply that is shown can be told from an instruction by its place only, so this is for models that nobody trusts far.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

from rl_conductor.fences import MARK
from rl_conductor.models.base import WrapperModel
from rl_conductor.prompts import SHOWN, SUBTASK, Evidence, prompt_in, with_prompt, worker_prompt
from rl_conductor.types import Completion, Delta, Request

# What is inside of a fence holds no tag like its own. To stop at the next one keeps searching linear in the prompt.
_SUBTASKS = re.compile(rf"<subtask [^<>\n]*{MARK}>\n(?:(?!</?subtask\b).)*+</subtask {MARK}>\n*", re.DOTALL)
_FENCES = re.compile(rf"</?(?:reply|passage)\b[^<>\n]*{MARK}>\n?")
_REPLIES = re.compile(rf"<reply [^<>\n]*{MARK}>\n((?:(?!</?reply\b).)*+)</reply {MARK}>", re.DOTALL)
_ENDING = SUBTASK.rpartition("{subtask}")[2]


class CompactModel(WrapperModel):
    """Another model, shown less."""

    async def complete(self, request: Request) -> Completion:
        """The model's reply to the request in brief."""
        return await self.model.complete(_compact(request))

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The same, as it is made."""
        async with aclosing(self.model.stream(_compact(request))) as deltas:
            async for delta in deltas:
                yield delta


def _compact(request: Request) -> Request:
    return request.model_copy(update={"messages": with_prompt(request.messages, compact(prompt_in(request.messages)))})


def compact(prompt: str) -> str:
    """A worker's prompt without the fences of what it shows, the subtasks of other steps and what explains both."""
    short = _FENCES.sub("", _SUBTASKS.sub("", prompt)).replace(f"{SHOWN}\n\n", "")
    return short.removesuffix(_ENDING)


def shown(task: str, subtask: str, *replies: str) -> str:
    """A worker's prompt in brief, as its examples need it."""
    evidence = [Evidence(label="", subtask="", reply=reply) for reply in replies]
    return compact(worker_prompt(task, evidence, subtask, key="examples"))


def last_reply(prompt: str) -> str | None:
    """The reply of the latest step that a worker's prompt shows; `None` when it shows none."""
    replies: list[str] = _REPLIES.findall(prompt)
    return replies[-1].removesuffix("\n") if replies else None
