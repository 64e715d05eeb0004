"""Models of one's own: what a subclass of `Model` has to define, and what is said if something is missing."""

from __future__ import annotations

import pytest

from rl_conductor import Completion, Conductor, ConfigError, Message, Model, Request, ScriptedModel, WorkerPool
from rl_conductor.types import Delta


class Echo(Model):
    name = "echo"

    async def complete(self, request: Request) -> Completion:
        return Completion(message=Message.assistant(request.messages[-1].text), model=self.name)


async def test_a_model_needs_a_name_and_complete_only() -> None:
    made = Conductor(ScriptedModel("no plan"), {"echo": Echo(), "other": ScriptedModel("other")})

    trace = await made.run("Hello?")

    assert trace.text == "Hello?"
    assert trace.usage.unpriced_calls == 1, "its price is unknown"
    first = await anext(Echo().stream(Request.user("hi")))
    assert first == Delta(text="hi")
    await made.aclose()


def test_a_subclass_that_lacks_something_says_what() -> None:
    class Nameless(Model):
        async def complete(self, request: Request) -> Completion:
            raise NotImplementedError

    with pytest.raises(TypeError, match="abstract method"):
        Nameless()  # type: ignore[abstract]


def test_a_class_that_is_almost_a_model_is_told_what_it_lacks() -> None:
    class Almost:
        name = "almost"

        async def complete(self, request: Request) -> Completion:
            raise NotImplementedError

    with pytest.raises(ConfigError, match="it has no capabilities and no price and no stream and no aclose"):
        WorkerPool({"a": Almost()})  # type: ignore[arg-type]
