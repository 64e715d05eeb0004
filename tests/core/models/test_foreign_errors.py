"""Exceptions of SDKs, other frameworks and users' own models as errors of calls."""

from __future__ import annotations

import traceback
from typing import Any

import anthropic
import openai
import pytest

from rl_conductor import Completion, Conductor, Message, Model, Request, RunError, ScriptedModel
from rl_conductor.errors import (
    AuthenticationError,
    BadRequestError,
    ContextLengthError,
    ModelError,
    ModelTimeoutError,
    RateLimitError,
    UnreachableError,
)
from rl_conductor.models.foreign_errors import host_error, model_error
from rl_conductor.pool.function_model import FunctionModel

SECRET = "sk-very-secret-key"


class VendorError(Exception):
    """An error as in the SDKs of vendors."""

    def __init__(self, text: str, status: int, **fields: Any) -> None:
        super().__init__(text)
        self.status_code = status
        vars(self).update(fields)


class Source:
    """A host's model with a key."""

    def __init__(self) -> None:
        self.api_key = SECRET


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (VendorError("no", 401), AuthenticationError),
        (VendorError("slowly", 429), RateLimitError),
        (VendorError("odd", 400), BadRequestError),
        (VendorError("too long", 400, body={"code": "context_length_exceeded"}), ContextLengthError),
        (VendorError("broken", 500), ModelError),
        (TimeoutError(), ModelTimeoutError),
        (ZeroDivisionError("oh"), ModelError),
    ],
)
def test_an_exception_becomes_the_error_of_its_status_or_kind(error: Exception, kind: type[ModelError]) -> None:
    translated = model_error(error, name="host:m", source=Source())
    assert type(translated) is kind
    assert translated.status == getattr(error, "status_code", None)
    assert str(translated).startswith("host:m")
    assert str(error) in str(translated)


def test_the_first_matching_kind_of_an_exception_without_a_status_counts() -> None:
    kinds: dict[type[Exception], type[ModelError]] = {LookupError: RateLimitError, KeyError: AuthenticationError}
    assert type(model_error(KeyError("x"), name="m", source=None, kinds=kinds)) is RateLimitError
    by_status = model_error(VendorError("no", 401), name="m", source=None, kinds={VendorError: RateLimitError})
    assert type(by_status) is AuthenticationError


def test_the_keys_of_the_source_are_redacted_in_every_error() -> None:
    for error in (VendorError(f"wrong {SECRET}", 401, body={"message": SECRET}), ValueError(f"with {SECRET}")):
        assert SECRET not in str(model_error(error, name="m", source=Source()))


@pytest.mark.parametrize("sdk", [openai.OpenAI, anthropic.Anthropic])
def test_a_server_to_which_an_sdk_can_not_connect_is_unreachable(sdk: Any) -> None:
    client = sdk(api_key=SECRET, base_url="http://127.0.0.1:9", max_retries=0)
    with pytest.raises((openai.APIConnectionError, anthropic.APIConnectionError)) as caught:
        client.models.list()
    translated = model_error(caught.value, name="m", source=client)
    assert type(translated) is UnreachableError
    assert "m: can't reach its server" in str(translated)


def test_a_timeout_and_a_lost_connection_of_an_sdk_may_have_been_billed() -> None:
    request: Any = None
    assert type(model_error(openai.APITimeoutError(request), name="m", source=None)) is ModelTimeoutError
    assert type(model_error(openai.APIConnectionError(request=request), name="m", source=None)) is ModelError


async def test_a_call_on_the_wrong_event_loop_is_retried_once() -> None:
    error = RuntimeError("Event loop is closed")
    translated = host_error(error, name="m", source=None)
    assert (translated.retryable, translated.min_retries) == (True, 1)
    assert host_error(ValueError("x"), name="m", source=None).min_retries == 0


async def test_a_users_own_model_that_is_over_its_rate_limit_is_called_again() -> None:
    class Busy(Model):
        name = "busy"
        calls = 0

        async def complete(self, request: Request) -> Completion:
            self.calls += 1
            if self.calls == 1:
                raise VendorError("slowly", 429)
            return Completion(message=Message.assistant("An answer."), model=self.name)

    conductor = Conductor(ScriptedModel("no plan"), {"busy": Busy()}, retries=1)
    trace = await conductor.run("Why?")
    assert trace.text == "An answer."
    assert [call.status for call in trace.calls if call.worker] == [429, None]


async def test_a_users_own_model_that_fails_otherwise_is_not_called_again() -> None:
    class Broken(Model):
        name = "broken"

        async def complete(self, request: Request) -> Completion:
            raise ZeroDivisionError("oh")

    with pytest.raises(RunError, match="broken raised ZeroDivisionError: oh") as caught:
        await Conductor(ScriptedModel("no plan"), {"broken": Broken()}).run("Why?")
    assert len([call for call in caught.value.trace.calls if call.worker]) == 1


@pytest.mark.parametrize("is_quoted", [True, False])
async def test_a_traceback_has_the_cause_of_a_functions_error_unless_that_shows_a_key(is_quoted: bool) -> None:
    api_key = SECRET

    def look_up(_: str) -> str:
        try:
            int(api_key if is_quoted else "no number")
        except ValueError as error:
            raise LookupError("nothing there") from error
        return ""

    with pytest.raises(ModelError, match="nothing there") as caught:
        await FunctionModel(look_up).complete(Request.user("q"))
    text = "".join(traceback.format_exception(caught.value))
    assert ("no number" in text) is not is_quoted
    assert SECRET not in text
    assert (caught.value.__context__ is None) is is_quoted
