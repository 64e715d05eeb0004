"""Endpoints: precedence of arguments and environment, and addresses that are refused."""

from __future__ import annotations

from base64 import b64encode

import pytest

from rl_conductor.errors import ConfigError
from rl_conductor.models.endpoints import ENDPOINTS, Endpoint, usable_key
from rl_conductor.models.prices import price_of
from rl_conductor.types import FREE

PAID = Endpoint("openai", "https://api.paid.example/v1", "PAID_URL", ("PAID_KEY", "OLD_PAID_KEY"), ("paid.example",))
OWN = Endpoint("own", "http://localhost:1234/v1", "OWN_URL", ("OWN_KEY",))
ELSEWHERE = "https://elsewhere.example/v1"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAID_KEY", "paid-key")
    monkeypatch.setenv("OWN_KEY", "own-key")


@pytest.mark.parametrize(
    ("endpoint", "base_url", "variable", "key"),
    [
        (PAID, None, None, "paid-key"),
        (PAID, "https://eu.paid.example/v1", None, "paid-key"),
        (PAID, None, ELSEWHERE, "paid-key"),
        (PAID, ELSEWHERE, None, None),
        (PAID, ELSEWHERE, "https://another.example/v1", None),
        (PAID, "https://paid.example.org/v1", None, None),
        (OWN, None, None, "own-key"),
        (OWN, ELSEWHERE, None, "own-key"),
    ],
)
def test_the_environments_key_goes_where_the_user_said_that_its_service_is(
    monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint, base_url: str | None, variable: str | None, key: str | None
) -> None:
    if variable:
        monkeypatch.setenv(endpoint.address_variable, variable)
    credentials = endpoint.credentials("m", base_url=base_url, api_key=None)
    assert credentials.base_url == (base_url or variable or endpoint.base_url)
    assert credentials.key == key


@pytest.mark.parametrize(
    ("host", "is_bedrock"),
    [
        ("bedrock-runtime.us-east-1.amazonaws.com", True),
        ("bedrock-runtime-fips.us-gov-west-1.amazonaws.com", True),
        ("bedrock-runtime.cn-north-1.amazonaws.com.cn", True),
        ("bedrock-runtime.eusc-de-east-1.amazonaws.eu", True),
        ("bedrock-mantle.eu-west-1.api.aws", True),
        ("vpce-0a1b-c2d3.bedrock-runtime.us-east-1.vpce.amazonaws.com", True),
        ("ec2-1-2-3-4.us-west-2.compute.amazonaws.com", False),
        ("bedrock-runtime-1234.us-east-1.elb.amazonaws.com", False),
        ("a1b2.execute-api.us-east-1.amazonaws.com", False),
        ("bedrock-runtime.us-east-1.s3.us-east-1.amazonaws.com", False),
        ("bedrock-runtime.us-east-1.amazonaws.com.example.org", False),
    ],
)
def test_the_environments_key_for_bedrock_goes_to_no_host_of_another_customer_of_aws(
    monkeypatch: pytest.MonkeyPatch, host: str, is_bedrock: bool
) -> None:
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "aws-key")
    credentials = ENDPOINTS["bedrock"].credentials("m", base_url=f"https://{host}", api_key=None)
    assert credentials.key == ("aws-key" if is_bedrock else None)
    assert credentials.is_official == is_bedrock


@pytest.mark.parametrize("default_url", ["https://bedrock-runtime.elsewhere.example/.amazonaws.com", ELSEWHERE])
def test_the_environments_key_goes_to_no_other_host_that_a_region_names(
    monkeypatch: pytest.MonkeyPatch, default_url: str
) -> None:
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "aws-key")
    credentials = ENDPOINTS["bedrock"].credentials("m", base_url=None, api_key=None, default_url=default_url)
    assert (credentials.key, credentials.uses_identity) == (None, False)


def test_a_key_that_is_passed_goes_where_the_caller_says() -> None:
    credentials = PAID.credentials("m", base_url=ELSEWHERE, api_key="mine")
    assert (credentials.base_url, credentials.key, credentials.is_official) == (ELSEWHERE, "mine", False)
    assert "mine" not in repr(credentials)


def test_an_empty_variable_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAID_KEY", " \n")
    with pytest.raises(ConfigError, match="openai:m needs a key: set PAID_KEY"):
        PAID.credentials("m", base_url=None, api_key=None)
    monkeypatch.setenv("OLD_PAID_KEY", "old")
    assert PAID.credentials("m", base_url=None, api_key=None).key == "old"


def test_prices_are_known_at_home_alone_and_what_users_run_is_free() -> None:
    is_official, elsewhere = (PAID.credentials("m", base_url=url, api_key="k") for url in (None, ELSEWHERE))
    assert PAID.price_of("gpt-5", is_official) == price_of("openai", "gpt-5") is not None
    assert PAID.price_of("gpt-5", elsewhere) is None
    assert OWN.price_of("any", OWN.credentials("any", base_url=ELSEWHERE, api_key=None)) == FREE


def test_a_password_in_an_address_is_a_secret_too() -> None:
    secrets = OWN.credentials("m", base_url="http://me:pass-word@h/v1", api_key="k").secrets
    assert secrets == ("k", "pass-word", b64encode(b"me:pass-word").decode())


@pytest.mark.parametrize("rest", ["?key=sk-secret", "#sk-secret"])
def test_an_address_to_which_no_path_can_be_added_is_refused(rest: str) -> None:
    with pytest.raises(ConfigError, match=r"base_url 'http://h/v1' has a query or a fragment: leave out") as caught:
        OWN.credentials("m", base_url=f"http://h/v1{rest}", api_key=None)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["localhost:8000/v1", "ftp://h", "http://", "http://[::1", "http://h:none", " \n"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid URL: write one such as"):
        OWN.credentials("m", base_url=url, api_key=None)


def test_a_refused_address_is_quoted_without_its_password() -> None:
    with pytest.raises(ConfigError, match="base_url 'ftp://h/v1' is not a valid URL"):
        OWN.credentials("m", base_url="ftp://me:pass-word@h/v1", api_key=None)


def test_no_key_is_sent_to_a_vendor_unencrypted() -> None:
    expected = "base_url 'http://paid.example/v1' would send the key unencrypted: write 'https://'"
    with pytest.raises(ConfigError, match=expected):
        PAID.credentials("m", base_url="http://paid.example/v1", api_key=None)
    assert PAID.credentials("m", base_url="HTTPS://paid.example/v1", api_key=None).key == "paid-key"


def test_blank_space_around_an_address_is_no_part_of_it() -> None:
    assert OWN.credentials("m", base_url=" http://h/v1\n", api_key=None).base_url == "http://h/v1"


@pytest.mark.parametrize("key", ["two\nlines", "b\u00e4d", "nul\x00", "\ufeffbom", "\u201cquoted\u201d"])
def test_what_no_header_can_hold_is_no_key(key: str) -> None:
    with pytest.raises(ConfigError, match=r"^SOME_KEY is not a valid API key") as caught:
        usable_key("SOME_KEY", key)
    assert key not in str(caught.value)
