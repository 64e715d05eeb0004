"""Helpers for tests of runs: plan texts, pools of scripted models, and a parser of delimited prompts."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from rl_conductor.errors import ModelError, RateLimitError
from rl_conductor.models import Model
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.prompting.worker_prompt import TASK, subtask_in
from rl_conductor.trace.events import Event, StepFinished, StepStarted
from rl_conductor.types import Card, Completion, Delta, Message, Request, Usage, prompt_in
from rl_conductor.workflow.workflow import Step, Workflow

ACCEPT = "Good.\nmodel_id = []\nsubtasks = []\naccess_list = []"
SOON = 60.0
"""Seconds: a timeout for tests that is long enough for a busy machine."""


def plan(*steps: tuple[int, str, list[Any]]) -> str:
    """A plan in the form `lists`, of (worker, subtask, access)."""
    columns = zip(("model_id", "subtasks", "access_list"), map(list, zip(*steps, strict=True)), strict=True)
    return "Think.\n" + "\n".join(f"{label} = {json.dumps(column)}" for label, column in columns)


def rows(*steps: tuple[int, str, list[Any]]) -> list[str]:
    """A plan in the form `rows`, a line each, ends of lines included but for the last."""
    texts = [json.dumps(step) for step in steps]
    return [f"{text}\n" for text in texts[:-1]] + texts[-1:]


def workflow(*steps: tuple[str, str, Sequence[int]]) -> Workflow:
    """A workflow of (worker, subtask, access)."""
    return Workflow(
        steps=tuple(Step(subtask=subtask, worker=worker, access=frozenset(access)) for worker, subtask, access in steps)
    )


def down(_: Request) -> Exception:
    """A reply that fails with an error that is not retried."""
    return ModelError("out of order", model="down")


def busy(_: Request) -> Exception:
    """A reply that fails with a rate limit, with almost no wait before the retry."""
    return RateLimitError("busy", model="busy", status=429, retry_after=0.001)


def pool_of(**models: Any) -> WorkerPool:
    """Scripted workers by name: a script, or a whole worker or model."""
    return WorkerPool(model if isinstance(model, Worker) else worker(name, model) for name, model in models.items())


def worker(name: str, model: Any, *, accuracy: float = 0.0, **options: Any) -> Worker:
    """A scripted worker with a measured accuracy."""
    card_options = {key: options.pop(key) for key in ("tags", "region", "latency") if key in options}
    card = Card(name=name, accuracy={"all": accuracy}, **card_options)
    scripted = model if isinstance(model, Model) else ScriptedModel(model, name=name)
    return Worker.of(name, scripted, card=card, **options)


class Gated(ScriptedModel):
    """A scripted model that awaits `wait` before it answers."""

    def __init__(self, replies: Any, wait: Callable[[Request], Awaitable[object]], **options: Any) -> None:
        super().__init__(replies, **options)
        self._wait = wait
        self.held = 0
        """Number of calls that are waiting."""
        self.asked = asyncio.Event()

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Streams the reply after the wait."""
        self.held += 1
        self.asked.set()
        try:
            await self._wait(request)
        finally:
            self.held -= 1
        async with aclosing(super().stream(request)) as deltas:
            async for delta in deltas:
                yield delta


class Paced(ScriptedModel):
    """A scripted model that awaits `pause` with the text so far after each piece."""

    def __init__(self, replies: Any, pause: Callable[[str], Awaitable[object]], **options: Any) -> None:
        super().__init__(replies, **options)
        self._pause = pause

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Streams the reply with a pause after each piece."""
        text = ""
        async with aclosing(super().stream(request)) as deltas:
            async for delta in deltas:
                text += delta.text
                yield delta
                await self._pause(text)


async def forever(_: Request) -> None:
    """A wait that only cancellation ends."""
    await asyncio.Event().wait()


class Section(NamedTuple):
    """The content of one delimited section of a prompt."""

    tag: str
    step: str | None
    content: str


def sections(prompt: str) -> list[Section]:
    """Parses the sections between tags with the nonce of the first tag, ignoring any other tags in replies."""
    mark = re.search(r'^<\w+(?: step="[^"]*")? mark="([0-9a-f]{16})">$', prompt, re.MULTILINE)
    if mark is None:
        return []
    tag = re.compile(rf'^<(?P<end>/?)(?P<tag>\w+)(?: step="(?P<step>[^"]*)")? mark="{mark[1]}">$', re.MULTILINE)
    parsed: list[Section] = []
    opened: re.Match[str] | None = None
    for match in tag.finditer(prompt):
        if opened is None:
            assert not match["end"], f"a section is closed that was not opened: {match[0]}"
            opened = match
        else:
            assert (match["end"], match["tag"]) == ("/", opened["tag"]), f"{opened[0]} is followed by {match[0]}"
            parsed.append(Section(opened["tag"], opened["step"], prompt[opened.end() + 1 : match.start() - 1]))
            opened = None
    assert opened is None, "a section stays open"
    return parsed


def evidence_in(prompt: str) -> list[tuple[str, str, str]]:
    """The (step, subtask, reply) that a prompt shows."""
    evidence = []
    for section in sections(prompt):
        subtask, _, reply = section.content.partition("\n")
        assert (section.tag, subtask[:9]) == ("reply", "subtask: ")
        evidence.append((str(section.step), str(json.loads(subtask[9:])), reply))
    return evidence


def prompt_of(request: Request) -> str:
    """The last user message of a request."""
    return prompt_in(request.messages)


def evidence_of(request: Request) -> list[tuple[str, str, str]]:
    """The (step, subtask, reply) sections of a worker's prompt."""
    return evidence_in(prompt_of(request))


def subtask_of(request: Request) -> str:
    """The subtask in a worker's prompt."""
    return subtask_in(prompt_of(request))


def is_about(request: Request, question: str) -> bool:
    """Whether the prompt opens with the question."""
    return prompt_of(request).startswith(TASK.format(question=question) + "\n\n")


def started(events: Sequence[Event]) -> list[tuple[int, str, int]]:
    """The (step, worker, attempt) of every call that was begun, in order."""
    return [(event.index, event.worker, event.attempt) for event in events if isinstance(event, StepStarted)]


def finished(events: Sequence[Event]) -> list[int]:
    """The steps that were reported as done, failed or skipped, in order."""
    return [event.result.index for event in events if isinstance(event, StepFinished)]


def reply(text: str, *, usage: Usage | None = None) -> Completion:
    """A completion as a vendor would send it, with the usage it claims."""
    return Completion(message=Message.assistant(text), usage=usage or Usage(calls=1), model="vendor")


def leftover_tasks() -> set[asyncio.Task[Any]]:
    """Returns all tasks other than the test's own."""
    return asyncio.all_tasks() - {asyncio.current_task()}
