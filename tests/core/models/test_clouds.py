"""Models in clouds: their addresses, and the machine's identity in place of a key."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from core.runs import SOON
from rl_conductor import Conductor, ConfigError, RunError, ScriptedModel, WorkerPool
from rl_conductor.errors import AuthenticationError, ModelTimeoutError, OverloadedError, RateLimitError
from rl_conductor.models import Model, model
from rl_conductor.models.base import collect
from rl_conductor.models.prices import price_of
from rl_conductor.types import Request
from rl_conductor.workflow.policy import Policy

from .wire.base import SECRET, Failure
from .wire.clouds import (
    PROJECT,
    REGION,
    AzureWire,
    BedrockClaudeWire,
    BedrockWire,
    VertexClaudeWire,
    VertexWire,
    message,
)

HELLO = Request.user("hello there")
CLOUD_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_", "ANTHROPIC_", "IDENTITY_", "MSI_", "OPENAI_")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(CLOUD_VARIABLES)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_GCE_CHECK", "true")


@pytest.fixture(scope="module")
def azure() -> Iterator[AzureWire]:
    with AzureWire.running() as wire:
        yield wire


@pytest.fixture(scope="module")
def bedrock() -> Iterator[BedrockWire]:
    with BedrockWire.running() as wire:
        yield wire


@pytest.fixture(scope="module")
def bedrock_claude() -> Iterator[BedrockClaudeWire]:
    with BedrockClaudeWire.running() as wire:
        yield wire


@dataclass
class TokenServer:
    """Gives out tokens as the clouds' own services do: `SECRET`, or an error when it is told to."""

    url: str = ""
    is_failing: bool = False
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    server = TokenServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer("")

        def do_POST(self) -> None:
            self.answer(self.rfile.read(int(self.headers["content-length"])).decode())

        def answer(self, content: str) -> None:
            server.requests.append(f"{self.path} {content}")
            expiry = {"expires_in": 3600, "expires_on": "4102444800", "token_type": "Bearer", "resource": "r"}
            reply = {"error": "invalid_grant"} if server.is_failing else {"access_token": SECRET, **expiry}
            self.send_response(400 if server.is_failing else 200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(reply).encode())

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    http.shutdown()
    thread.join()
    http.server_close()


async def reply_of(made: Model, *, stream: bool = False) -> str:
    try:
        return (await (collect(made.stream(HELLO)) if stream else made.complete(HELLO))).text
    finally:
        await made.aclose()


async def error_of(made: Model) -> str:
    """The error of a run whose only worker is the model, and all that its trace says."""
    try:
        with pytest.raises(RunError) as caught:
            await Conductor(ScriptedModel("-"), WorkerPool({"a": made}), policy=Policy(single="a")).run("Hi.")
        return f"{caught.value} {caught.value.trace.model_dump_json()}"
    finally:
        await made.aclose()


# -------------------------------------------------------------------------------------------- Azure


async def test_azure_without_a_version_is_its_api_v1(azure: AzureWire, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in (azure.url, f"{azure.url}/", f"{azure.url}/openai/v1/"):
        assert await reply_of(model("azure:echo", base_url=address, api_key=SECRET)) == "You said: hello there"
        assert azure.last.path == "/openai/v1/chat/completions"
    monkeypatch.setenv("OPENAI_API_VERSION", "2024-10-21")
    assert await reply_of(model("azure:echo", base_url=azure.url, api_key=SECRET)) == "You said: hello there"
    assert azure.last.path == "/openai/deployments/echo/chat/completions?api-version=2024-10-21"
    assert "authorization" not in azure.last.headers


@pytest.mark.parametrize("version", [None, "2024-10-21"])
async def test_azure_without_a_key_uses_the_machines_identity(
    azure: AzureWire, tokens: TokenServer, monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", azure.url)
    monkeypatch.setenv("IDENTITY_ENDPOINT", tokens.url)
    monkeypatch.setenv("IDENTITY_HEADER", "a-header")
    made = model("azure:echo", api_version=version)
    assert await reply_of(made, stream=True) == "You said: hello there"
    assert azure.last.headers["authorization"] == f"Bearer {SECRET}"
    assert "cognitiveservices.azure.com" in tokens.requests[0]
    text = await error_of(model("azure:unauthorized"))
    assert "[secret]" in text
    assert SECRET not in text


async def test_an_azure_identity_that_gets_no_token_fails_the_call(
    azure: AzureWire, tokens: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens.is_failing = True
    for name, value in (("TENANT_ID", "t"), ("CLIENT_ID", "c")):
        monkeypatch.setenv(f"AZURE_{name}", value)
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", azure.url)
    monkeypatch.setenv("IDENTITY_ENDPOINT", tokens.url)
    monkeypatch.setenv("IDENTITY_HEADER", "a-header")
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
    made = model("azure:echo")
    with pytest.raises(AuthenticationError, match="azure:echo: no token of the Entra identity"):
        await reply_of(made)


async def test_azure_sends_no_credentials_of_the_environment_to_an_address_of_the_caller(
    azure: AzureWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "key-of-the-environment")
    azure.requests.clear()
    with pytest.raises(Exception, match="test server failed"):  # it insists on credentials
        await reply_of(model("azure:echo", base_url=azure.url))
    assert azure.last.headers.keys().isdisjoint({"authorization", "api-key"})


def test_azure_needs_the_address_of_a_resource() -> None:
    with pytest.raises(ConfigError, match="azure:gpt needs the address of your resource: set AZURE_OPENAI_ENDPOINT"):
        model("azure:gpt")
    made = model("azure:gpt-5", base_url="https://mine.openai.azure.com", api_key=SECRET)
    assert made.price == price_of("azure", "gpt-5")
    assert not made.capabilities.array_bounds


# ------------------------------------------------------------------------------------------ Bedrock


def set_aws_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAACCESSKEYOFMINE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-access-key-of-mine")
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET)
    monkeypatch.setenv("AWS_REGION", REGION)


@pytest.mark.parametrize("name", ["bedrock:", "bedrock:anthropic."])
async def test_bedrock_without_a_key_signs_with_aws_credentials(
    bedrock: BedrockWire, bedrock_claude: BedrockClaudeWire, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    set_aws_credentials(monkeypatch)
    monkeypatch.setenv("AWS_BEDROCK_BASE_URL", f"{bedrock.url}/openai/v1")
    monkeypatch.setenv("ANTHROPIC_BEDROCK_BASE_URL", bedrock_claude.url)
    wire = bedrock_claude if "anthropic" in name else bedrock
    for stream in (False, True):
        assert await reply_of(model(f"{name}echo"), stream=stream) == "You said: hello there"
        assert "Credential=AKIAACCESSKEYOFMINE/" in wire.last.headers["authorization"]
        assert wire.last.headers["x-amz-security-token"] == SECRET
    text = await error_of(model(f"{name}unauthorized"))
    assert "[secret]" in text
    assert SECRET not in text


async def test_bedrock_signs_with_a_profile_even_where_there_is_a_key(
    bedrock: BedrockWire, bedrock_claude: BedrockClaudeWire, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "aws").write_text(
        f"[profile team]\nregion = {REGION}\naws_access_key_id = AKIATEAM\naws_secret_access_key = s\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws"))
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", SECRET)
    options = {"aws_profile": "team"}
    assert await reply_of(model("bedrock:echo", base_url=f"{bedrock.url}/openai/v1", **options))
    assert await reply_of(model("bedrock:anthropic.echo", base_url=bedrock_claude.url, **options))
    for wire in (bedrock, bedrock_claude):
        assert "Credential=AKIATEAM/" in wire.last.headers["authorization"]


@pytest.mark.parametrize("name", ["bedrock:", "bedrock:anthropic."])
async def test_bedrock_sends_no_credentials_of_the_environment_to_an_address_of_the_caller(
    bedrock: BedrockWire, bedrock_claude: BedrockClaudeWire, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    set_aws_credentials(monkeypatch)
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", SECRET)
    wire, path = (bedrock_claude, "") if "anthropic" in name else (bedrock, "/openai/v1")
    with pytest.raises(Exception, match=r"test server failed|Internal"):  # it insists on credentials
        await reply_of(model(f"{name}echo", base_url=f"{wire.url}{path}"))
    assert wire.last.headers["authorization"] == "Bearer none"
    assert "x-amz-security-token" not in wire.last.headers


@pytest.mark.parametrize("name", ["bedrock:echo", "bedrock:anthropic.echo"])
async def test_bedrock_without_any_credentials_says_what_to_set(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} needs a region: set AWS_REGION"):
        model(name)
    monkeypatch.setenv("AWS_BEDROCK_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("ANTHROPIC_BEDROCK_BASE_URL", "http://127.0.0.1:9")
    with pytest.raises(AuthenticationError, match=r"credentials.*AWS_BEARER_TOKEN_BEDROCK"):
        await reply_of(model(name, aws_region="us-west-2"))


async def test_a_profile_of_an_application_names_its_protocol(bedrock_claude: BedrockClaudeWire) -> None:
    arn = "arn:aws:bedrock:eu-west-1:123456789012:application-inference-profile/echo"
    options = {"base_url": bedrock_claude.url, "api_key": SECRET, "aws_region": REGION}
    assert await reply_of(model(f"bedrock:{arn}", protocol="anthropic", **options)) == "You said: hello there"
    with pytest.raises(ConfigError, match="protocol='converse' is unknown; write 'anthropic' or 'openai'"):
        model(f"bedrock:{arn}", protocol="converse", **options)


async def test_throttling_within_a_stream_of_aws_is_a_rate_limit() -> None:
    class Throttled(BedrockClaudeWire):
        def frame(self, event: str) -> bytes:
            kinds = {":message-type": "exception", ":exception-type": "throttlingException"}
            return super().frame(event) if "data: " in event else message(kinds, '{"message": "Too many tokens"}')

    with Throttled.running() as wire:
        made = model("bedrock:anthropic.breaks", base_url=wire.url, api_key=SECRET, aws_region=REGION)
        with pytest.raises(RateLimitError, match="Too many tokens"):
            await reply_of(made, stream=True)


async def test_an_overload_that_aws_reports_is_one() -> None:
    name = "serviceUnavailableException"

    class Overloaded(BedrockClaudeWire):
        def failure(self, scenario: str) -> Failure:
            return Failure(503, {"message": "Try again later."}, {"x-amzn-ErrorType": f"S{name[1:]}:http://aws"})

        def frame(self, event: str) -> bytes:
            kinds = {":message-type": "exception", ":exception-type": name}
            return super().frame(event) if "data: " in event else message(kinds, '{"message": "Try again later."}')

    with Overloaded.running() as wire:
        made = model("bedrock:anthropic.breaks", base_url=wire.url, api_key=SECRET, aws_region=REGION)
        for streamed in (False, True):
            with pytest.raises(OverloadedError, match="Try again later") as caught:
                await reply_of(made, stream=streamed)
            assert caught.value.status == 503


def test_prices_on_bedrock_are_those_of_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", REGION)
    for name in ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "openai.gpt-oss-120b-1:0"):
        assert model(f"bedrock:{name}").price == price_of("aws", name) is not None


# ------------------------------------------------------------------------------------------- Vertex


@pytest.fixture(scope="module")
def private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(pem, pkcs8, serialization.NoEncryption()).decode()


@pytest.fixture
def service_account(
    tmp_path: Path, private_key: str, tokens: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> TokenServer:
    """Application default credentials: a service account, whose tokens come from a local server."""
    account = {
        "type": "service_account",
        "project_id": PROJECT,
        "private_key_id": "k",
        "private_key": private_key,
        "client_email": "me@my-project.iam.gserviceaccount.com",
        "token_uri": f"{tokens.url}/token",
    }
    (tmp_path / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
    return tokens


@pytest.mark.parametrize(("name", "service"), [("vertex:", VertexWire), ("vertex:claude-", VertexClaudeWire)])
async def test_vertex_without_a_token_uses_application_default_credentials(
    service_account: TokenServer,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    service: type[VertexWire | VertexClaudeWire],
) -> None:
    with service.running() as wire:
        monkeypatch.setenv("GOOGLE_VERTEX_BASE_URL", wire.url)
        for stream in (False, True):
            assert await reply_of(model(f"{name}echo"), stream=stream) == "You said: hello there"
        assert wire.last.headers["authorization"] == f"Bearer {SECRET}"
        assert all("assertion=" in request for request in service_account.requests)
        text = await error_of(model(f"{name}unauthorized"))
        assert "[secret]" in text
        assert SECRET not in text

        service_account.is_failing = True
        with pytest.raises(AuthenticationError, match=r"no Google Cloud credentials.*invalid_grant"):
            await reply_of(model(f"{name}echo"))


async def test_gemini_on_vertex_requests_one_token_for_many_calls_and_names_the_project_that_pays(
    service_account: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "payer")
    with VertexWire.running() as wire:
        monkeypatch.setenv("GOOGLE_VERTEX_BASE_URL", wire.url)
        made = model("vertex:echo")
        await asyncio.gather(*(made.complete(HELLO) for _ in range(20)))
        assert {request.headers["x-goog-user-project"] for request in wire.requests} == {"payer"}
        assert len(service_account.requests) == 1
        copy = pickle.loads(pickle.dumps(made))  # without the token, which another process requests itself
        assert await reply_of(copy) == await reply_of(made) == "You said: hello there"
        assert len(service_account.requests) == 2


async def test_a_token_of_vertex_that_takes_too_long_is_a_timeout(
    service_account: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr("google.auth.default", lambda **_: release.wait(SOON))
    try:
        with pytest.raises(ModelTimeoutError):
            await model("vertex:echo").complete(HELLO.model_copy(update={"timeout": 0.1}))
    finally:
        release.set()


@pytest.mark.parametrize(("name", "service"), [("vertex:", VertexWire), ("vertex:claude-", VertexClaudeWire)])
async def test_vertex_sends_no_credentials_of_the_environment_to_an_address_of_the_caller(
    service_account: TokenServer, name: str, service: type[VertexWire | VertexClaudeWire]
) -> None:
    with service.running() as wire:
        with pytest.raises(Exception, match=r"test server failed|500"):  # it insists on credentials
            await reply_of(model(f"{name}echo", base_url=wire.url))
        assert wire.last.headers["authorization"] == "Bearer none"
    assert not service_account.requests


@pytest.mark.parametrize("name", ["vertex:gemini-2.5-flash", "vertex:claude-sonnet-4-5"])
def test_vertex_has_one_address_a_location_and_googles_prices(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} needs a project: set GOOGLE_CLOUD_PROJECT"):
        model(name)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
    hosts = {
        "global": "aiplatform.googleapis.com",
        "eu": "aiplatform.eu.rep.googleapis.com",
        "europe-west4": "europe-west4-aiplatform.googleapis.com",
    }
    for location, host in hosts.items():
        made = model(name, location=location)
        assert made._credentials.base_url == f"https://{host}"  # type: ignore[attr-defined]
        assert made.price == price_of("google", name.partition(":")[2]) is not None


async def test_an_overload_of_a_claude_on_vertex_may_have_googles_words() -> None:
    class Unavailable(VertexClaudeWire):
        def failure(self, scenario: str) -> Failure:
            return Failure(503, {"error": {"code": 503, "message": "Try again.", "status": "UNAVAILABLE"}})

    with Unavailable.running() as wire:
        made = model("vertex:claude-overloaded", base_url=wire.url, api_key=SECRET, project=PROJECT)
        with pytest.raises(OverloadedError):
            await reply_of(made)


# ------------------------------------------------------------------------------------------ LiteLLM


def test_the_price_behind_a_gateway_is_unknown() -> None:
    assert model("litellm:gpt-5").price is None
