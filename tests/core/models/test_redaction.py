"""Redaction of secrets in messages, and the search for secrets in objects."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel, PrivateAttr, SecretStr

from rl_conductor.errors import AuthenticationError
from rl_conductor.models.redaction import find_secrets, redact_secrets, redacted_repr, redacted_text, redacting

KEY = "sk-0123456789abcdefwxyz"


def test_secrets_are_replaced_and_missing_ones_are_not_looked_for() -> None:
    one, other = "sk-0123456789", "another-key"
    assert redact_secrets(f"a key {one} and {other}", [one, None, "", other]) == "a key [secret] and [secret]"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("provided: sk-01234*********wxyz. See", "provided: [secret] See"),
        ("provided: sk-0...wxyz", "provided: [secret]"),
        ("ends in ****wxyz", "ends in [secret]"),
        ("begins with sk-0…", "begins with [secret]"),
        ("cut off: sk-0123456789abc", "cut off: [secret]"),
        ("a piece: 456789ab!", "a piece: [secret]!"),
        ("twice: 3456789abc and 3456789a", "twice: [secret] and [secret]"),
        ("Wait... what **is** this?", "Wait... what **is** this?"),
        ("no key at all: 0123", "no key at all: 0123"),
    ],
)
def test_parts_of_a_secret_are_cut_out_too(said: str, shown: str) -> None:
    assert redact_secrets(said, ["sk-0123456789abcdefwxyz"]) == shown


def test_secrets_that_share_a_part_are_cut_out_whole() -> None:
    secrets = ["sk-envkey-1234567890", "pw-123456789"]
    assert redact_secrets(f"{secrets[0]} and {secrets[1]}", secrets) == "[secret] and [secret]"
    assert redact_secrets("pw-1234567890", secrets) == "[secret]"


def test_what_only_stands_in_for_a_key_is_a_word_like_others() -> None:
    assert redact_secrets("none of it fits", ["none"]) == "none of it fits"


@pytest.mark.parametrize("text", ["a*" * 500_000, " ".join(f"sk-0**{number}" for number in range(60_000))])
def test_a_long_error_is_searched_in_no_time(text: str) -> None:
    began = time.process_time()
    redact_secrets(text, ["sk-" + "0123456789abcdef" * 10])
    assert time.process_time() - began < 2


def test_errors_leave_without_the_key() -> None:
    with pytest.raises(AuthenticationError, match=r"^m: bad \[secret\]$"), redacting("sk-0123456789"):
        raise AuthenticationError("m: bad sk-0123456789", model="m")


# --------------------------------------------------------------------------------------- finding


class Client(BaseModel):
    """A client of somebody else's."""

    model_name: str = "a-model-of-somebodys"
    api_key: str | None = None
    password: SecretStr | None = None
    headers: dict[str, str] = {}
    inner: Any = None
    _token: str = PrivateAttr(default="")


@dataclass
class Engine:
    """An object that holds clients."""

    parts: Any


def _closing_over(client: Client) -> Any:
    return lambda: client.model_name


def _holding_in_private(key: str) -> Client:
    client = Client()
    client._token = key
    return client


@pytest.mark.parametrize(
    "holder",
    [
        Client(api_key=KEY),
        Client(password=SecretStr(KEY)),
        Client(headers={"x-api-key": KEY}),
        _holding_in_private(KEY),
        Client(inner=Client(api_key=KEY)),
        Engine(parts=[Client(), (Client(api_key=KEY),)]),
        Engine(parts={"llm": Client(api_key=KEY)}),
        Engine(parts=_closing_over(Client(api_key=KEY))),
        Engine(parts=partial(print, Client(api_key=KEY))),
        Engine(parts=Client(api_key=KEY).model_dump),
    ],
)
def test_keys_are_found_wherever_an_object_keeps_them(holder: object) -> None:
    assert find_secrets(holder) == {KEY}


def test_the_password_of_an_address_is_a_secret() -> None:
    engine = Engine({"url": "https://user:pa-0123456789@example.org/v1?page=2", "text": "see http://example.org"})
    assert "pa-0123456789" in find_secrets(engine)
    assert "pa-0123456789" not in redacted_repr(engine)


def test_words_without_a_telling_name_are_no_secrets() -> None:
    assert (
        find_secrets(Engine(parts={"key": "messages", "text_key": "page_content", "tokens": "a few", "monkey": "ape"}))
        == set()
    )


class Proxy:
    """A lazy proxy that creates its target on first access."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name} can't be made")


def test_proxies_are_not_woken_up() -> None:
    assert find_secrets(Engine(parts=Proxy())) == set()


def test_rings_and_crowds_come_to_an_end() -> None:
    ring = Engine(parts=[])
    ring.parts.append(ring)
    began = time.process_time()
    assert find_secrets(ring) == find_secrets([object() for _ in range(1_000_000)]) == set()
    assert time.process_time() - began < 2


SHOP_API_KEY = KEY


def _asking_the_shop() -> str:
    return SHOP_API_KEY


def test_a_key_in_a_global_variable_that_a_function_uses_is_found() -> None:
    assert find_secrets(Engine(parts=_asking_the_shop)) == {KEY}


def test_errors_show_no_key_of_the_environment_but_other_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SHOP_KEY": KEY, "SHOP_KEY_FILE": "/etc/shop/key.pem", "PWD": "/home/me/shop"}.items():
        monkeypatch.setenv(name, value)
    error = f"the shop refused {KEY}; see /etc/shop/key.pem in /home/me/shop"
    assert redacted_text(error, None) == "the shop refused [secret]; see /etc/shop/key.pem in /home/me/shop"


def test_an_error_does_not_keep_the_vendors_own_which_may_quote_the_key() -> None:
    def refuse() -> None:
        try:
            int(KEY)
        except ValueError:
            raise AuthenticationError("the key is wrong", model="m") from None

    with pytest.raises(AuthenticationError) as caught, redacting(KEY):
        refuse()
    assert caught.value.__context__ is None


def test_an_object_in_an_error_shows_no_keys_and_not_all_of_a_long_text() -> None:
    assert "api_key='[secret]'" in redacted_repr(Client(api_key=KEY))
    assert len(redacted_repr("x" * 5_000)) == 1_000
