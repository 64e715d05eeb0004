"""What the tests of a run share: plans in words, pools of scripted models, and a reader of the fences."""

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
from rl_conductor.planning.prompts import TASK, prompt_in, subtask_in
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.trace.events import Event, StepFinished, StepStarted
from rl_conductor.types import Card, Completion, Delta, Message, Request, Usage
from rl_conductor.workflow.workflow import Step, Workflow

ACCEPT = "Good.\nmodel_id = []\nsubtasks = []\naccess_list = []"
SOON = 60.0
"""Seconds within which whatever a test waits for must have happened, however busy the machine is."""


def plan(*steps: tuple[int, str, list[Any]]) -> str:
    """A plan in the form `lists`, of (worker, subtask, access)."""
    columns = zip(("model_id", "subtasks", "access_list"), map(list, zip(*steps, strict=True)), strict=True)
    return "Think.\n" + "\n".join(f"{label} = {json.dumps(column)}" for label, column in columns)


def lines(*steps: tuple[int, str, list[Any]]) -> list[str]:
    """A plan in the form `lines`, a line each, ends of lines included but for the last."""
    texts = [json.dumps({"subtask": subtask, "worker": worker, "access": access}) for worker, subtask, access in steps]
    return [f"{text}\n" for text in texts[:-1]] + texts[-1:]


def workflow(*steps: tuple[str, str, Sequence[int]]) -> Workflow:
    """A workflow of (worker, subtask, access)."""
    return Workflow(
        steps=tuple(Step(subtask=subtask, worker=worker, access=frozenset(access)) for worker, subtask, access in steps)
    )


def down(_: Request) -> Exception:
    """What a model that is out of order says."""
    return ModelError("out of order", model="down")


def busy(_: Request) -> Exception:
    """What a model that is overloaded says, and would say again at once."""
    return RateLimitError("busy", model="busy", status=429, retry_after=0.001)


def pool_of(**models: Any) -> WorkerPool:
    """Scripted workers by name: a script, or a whole worker or model."""
    return WorkerPool(made if isinstance(made, Worker) else worker(name, made) for name, made in models.items())


def worker(name: str, model: Any, *, accuracy: float = 0.0, **options: Any) -> Worker:
    """A scripted worker with a measured accuracy."""
    card_options = {key: options.pop(key) for key in ("tags", "region", "latency") if key in options}
    card = Card(name=name, accuracy={"all": accuracy}, **card_options)
    made = model if isinstance(model, Model) else ScriptedModel(model, name=name)
    return Worker.of(name, made, card=card, **options)


class Gated(ScriptedModel):
    """A scripted model that waits for something of the test's before it answers."""

    def __init__(self, replies: Any, wait: Callable[[Request], Awaitable[object]], **options: Any) -> None:
        super().__init__(replies, **options)
        self._wait = wait
        self.held = 0
        """Calls that still wait."""
        self.asked = asyncio.Event()

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The reply, after the wait."""
        self.held += 1
        self.asked.set()
        try:
            await self._wait(request)
        finally:
            self.held -= 1
        async for delta in super().stream(request):
            yield delta


class Paced(ScriptedModel):
    """A scripted model that waits for something of the test's after each piece; it is told all it has said."""

    def __init__(self, replies: Any, pause: Callable[[str], Awaitable[object]], **options: Any) -> None:
        super().__init__(replies, **options)
        self._pause = pause

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The reply, with pauses."""
        said = ""
        async with aclosing(super().stream(request)) as deltas:
            async for delta in deltas:
                said += delta.text
                yield delta
                await self._pause(said)


async def forever(_: Request) -> None:
    """A wait that only cancellation ends."""
    await asyncio.Event().wait()


class Section(NamedTuple):
    """What one fence encloses."""

    tag: str
    step: str | None
    content: str


def sections(prompt: str) -> list[Section]:
    """What stands between tags that bear the mark of the first, and nothing else: a reader that trusts no reply."""
    mark = re.search(r'^<\w+(?: step="[^"]*")? mark="([0-9a-f]{16})">$', prompt, re.MULTILINE)
    if mark is None:
        return []
    tag = re.compile(rf'^<(?P<end>/?)(?P<tag>\w+)(?: step="(?P<step>[^"]*)")? mark="{mark[1]}">$', re.MULTILINE)
    found: list[Section] = []
    opened: re.Match[str] | None = None
    for one in tag.finditer(prompt):
        if opened is None:
            assert not one["end"], f"a fence is closed that was not opened: {one[0]}"
            opened = one
        else:
            assert (one["end"], one["tag"]) == ("/", opened["tag"]), f"{opened[0]} is followed by {one[0]}"
            found.append(Section(opened["tag"], opened["step"], prompt[opened.end() + 1 : one.start() - 1]))
            opened = None
    assert opened is None, "a fence stays open"
    return found


def evidence_in(prompt: str) -> list[tuple[str, str, str]]:
    """The (step, subtask, reply) that a prompt shows."""
    found = sections(prompt)
    subtasks, replies = found[::2], found[1::2]
    assert [(s.tag, s.step) for s in subtasks] == [("subtask", r.step) for r in replies]
    return [(str(r.step), s.content, r.content) for s, r in zip(subtasks, replies, strict=True)]


def prompt_of(request: Request) -> str:
    """The last user message of a request."""
    return prompt_in(request.messages)


def evidence_of(request: Request) -> list[tuple[str, str, str]]:
    """The (step, subtask, reply) that a worker was shown."""
    return evidence_in(prompt_of(request))


def subtask_of(request: Request) -> str:
    """The subtask that a worker was given."""
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
    """Tasks beside the test's own."""
    return asyncio.all_tasks() - {asyncio.current_task()}
