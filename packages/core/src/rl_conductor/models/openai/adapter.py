"""OpenAI, and any server that implements its Chat Completions API; `services` has those with a name of their own.

The protocol is in `wire`; this module handles keys, connections, deadlines and errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Mapping
from importlib import import_module
from typing import Any, ClassVar, get_args
from urllib.parse import urlsplit

from rl_conductor._internal.formatting import parse_seconds
from rl_conductor.errors import ConfigError, ModelError
from rl_conductor.models.base import Capabilities
from rl_conductor.models.endpoints import ENDPOINTS, usable_key
from rl_conductor.models.http.connections import connection_settings
from rl_conductor.models.http.model import HTTPModel
from rl_conductor.models.openai.dialects import DIALECTS, Dialect
from rl_conductor.models.openai.errors import refusal
from rl_conductor.models.openai.wire import Reply, extra_fields, options_of
from rl_conductor.models.vendor_errors import parse_retry_after, quote_body
from rl_conductor.text.reasoning import ReasoningStart
from rl_conductor.types import Price, Request

try:
    import openai
except ImportError as missing:
    raise ConfigError("the library 'openai' is not installed: pip install 'rl-conductor[openai]'") from missing

# openai 3 uses httpx2, openai 2 uses httpx; in the middle of a stream neither translates their errors.
_http: Any = import_module("httpx2" if int(openai.__version__.split(".")[0]) > 2 else "httpx")

PATH = "/chat/completions"
RESERVED_FIELDS = {
    "model": "write it in the model's name",
    "messages": "they are those of the request",
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "n_predict"), "write it as max_tokens in sampling"),
    **dict.fromkeys(("n", "best_of"), "a call has one reply"),
    **dict.fromkeys(("stream", "stream_options"), "each call decides whether it streams"),
}
"""Fields that `extra_body` can't have, and the reason: budgets and the reading of replies rely on them."""


class OpenAIModel(HTTPModel):
    """A model behind the Chat Completions protocol."""

    endpoint: ClassVar = ENDPOINTS["openai"]
    default_dialect: ClassVar = "openai"
    library_errors: ClassVar = (openai.APIError, _http.HTTPError)
    timeouts: ClassVar = (openai.APITimeoutError, _http.TimeoutException)
    connection_errors: ClassVar = (openai.APIConnectionError, _http.RequestError)

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        price: Price | None = None,
        capabilities: Capabilities | None = None,
        dialect: str | None = None,
        reasoning_start: ReasoningStart | None = None,
        context: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Configures the model; the first call opens the connection.

        Args:
            name: the model's name at the service.
            base_url: the URL of the API, including `/v1`; by default from the environment, else the service's own.
            api_key: the key, sent to `base_url`. By default from the environment; that key is sent only to the
                service or the URL from the environment, except that a self-hosted server (Ollama, vLLM) also gets it
                at another `base_url`.
            price: by default the listed price of a paid service, free for self-hosted servers, else unknown.
            capabilities: the features of the model; by default those of most models of the service.
            dialect: `openai`, `openrouter`, `vllm`, `llama.cpp` or `compatible`; by default the service's own.
            reasoning_start: `inside` if replies contain `</think>` without `<think>`, because the chat template opens
                the reasoning and the server has no parser for it; `outside` if they never do.
            context: maximum tokens of prompt and reply together; longer requests are refused before they are sent.
            extra_body: fields to add to every request, such as `{"chat_template_kwargs": {...}}`; not `max_tokens` and
                others that the budget relies on.
            headers: headers to send with every request, such as those of a gateway; their values are kept secret.

        Raises:
            ConfigError: the key is missing, or the URL, the dialect, `reasoning_start` or `extra_body` is invalid.
        """
        super().__init__(name, base_url=base_url, api_key=api_key, price=price)
        self._dialect = _dialect(dialect or (self.default_dialect if self._credentials.is_official else "compatible"))
        self._extra_body = _extra_body(extra_body or {})
        self._headers = {name: usable_key(f"headers.{name}", value) or "" for name, value in (headers or {}).items()}
        self._secrets = (*self._secrets, *self._headers.values())
        self.capabilities = _overridden(capabilities or self._default_capabilities(), reasoning_start, context)

    @property
    def reply_options(self) -> dict[str, object]:
        """The options besides the name that affect replies, without secrets: an address of its own, added fields."""
        return super().reply_options | ({"extra_body": self._extra_body} if self._extra_body else {})

    @property
    def _refuses_array_bounds(self) -> bool:
        """`True` if strict schemas can't use array bounds, as for Azure and fine-tuned models."""
        host = urlsplit(self._credentials.base_url).hostname or ""
        return self._model.startswith("ft:") or host.endswith(".azure.com")

    def _default_capabilities(self) -> Capabilities:
        """Returns the features of most models of the service."""
        return Capabilities(
            tools=True,
            images=True,
            files=self._dialect.files,
            json_schema=True,
            array_bounds=self._dialect.array_bounds and not self._refuses_array_bounds,
            grammar=self._dialect.grammar is not None,
            lengths=self._dialect.lengths,
            reasoning_start=self._dialect.reasoning_start,
        )

    async def _post(self, body: dict[str, Any], request: Request) -> object:
        """Sends the request through the SDK and returns the JSON of its response.

        Without `chat.completions.create`, which copies the request and builds an object for each part of the reply.
        """
        response: Any = await self._clients.get().post(
            PATH, cast_to=_http.Response, body=body, options=self._options(request)
        )
        self._reject_web_page(response)
        return json.loads(response.content)

    async def _events(self, body: dict[str, Any], request: Request) -> AsyncGenerator[object, None]:
        body["stream"] = True
        if self._dialect.stream_options:
            body["stream_options"] = {"include_usage": True}
        chunks: openai.AsyncStream[object] = await self._clients.get().post(
            PATH,
            cast_to=object,
            body=body,
            options=self._options(request),
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )
        async with chunks:
            self._reject_web_page(chunks.response)
            if (complete := await self._whole_json(chunks.response)) is not None:
                yield complete
                return
            async for chunk in chunks:
                yield chunk

    def _reply(self, _request: Request) -> Reply:
        return Reply(self.name)

    def _body(self, request: Request) -> dict[str, Any]:
        options = {"model": self._model, **options_of(request, self._dialect)}
        return options | self._extra_body | extra_fields(request, self._dialect)

    def _options(self, request: Request) -> Any:
        """Returns the SDK's options of a call, by default without its key for OpenAI's administration."""
        options = {"headers": self._extra_headers(), "security": {"bearer_auth": True}}
        return options if request.timeout is None else options | {"timeout": request.timeout}

    def _client(self) -> openai.AsyncOpenAI:
        # The SDK's default client closes itself when garbage-collected, on whichever event loop is running.
        connections = openai.DefaultAsyncHttpxClient(**connection_settings(_http))
        client = self._sdk_client(max_retries=0, http_client=connections)
        if not OpenAIModel.endpoint.matches(self._credentials.base_url):
            # The SDK reads them from the environment, but they are for OpenAI only.
            client.organization = client.project = None
        return client

    def _sdk_client(self, **settings: Any) -> openai.AsyncOpenAI:
        """Creates the SDK's client with the model's credentials."""
        return openai.AsyncOpenAI(
            base_url=self._credentials.base_url,
            api_key=self._credentials.key or "none",  # without a key the SDK would send OPENAI_API_KEY to any host
            **settings,
        )

    def _extra_headers(self) -> dict[str, Any]:
        """Returns the headers of every request; without a key or an identity, `Authorization` is left out."""
        has_credentials = self._credentials.key or self._credentials.uses_identity
        return self._headers if has_credentials else {"Authorization": openai.Omit(), **self._headers}

    # --------------------------------------------------------------------------------------- errors

    def _error(self, error: Exception) -> ModelError:
        if isinstance(error, openai.APIStatusError):
            wait = _retry_after(error.response.headers)
            return self._refusal(error, status=error.status_code, retry_after=wait)
        if isinstance(error, openai.APIError) and not isinstance(error, openai.APIConnectionError):
            return self._refusal(error)
        return super()._error(error)

    def _refusal(
        self, error: openai.APIError, *, status: int | None = None, retry_after: float | None = None
    ) -> ModelError:
        body = error.body or error.message
        if status in (404, 405) and not (isinstance(body, dict) and body.get("message")):  # unlike an API's errors
            text = body.get("detail", body) if isinstance(body, dict) else body
            body = f"status {status} from {self._address()}: {quote_body(str(text), status)}"
        return refusal(body, model=self.name, status=status, retry_after=retry_after)

    def _address(self) -> str:
        """Returns the address, and the features that it may lack."""
        where = super()._address()
        return where if re.search(r"/v\d", where) else f"{where} (base_url often ends in '/v1')"


def _dialect(name: str) -> Dialect:
    if name not in DIALECTS:
        raise ConfigError(f"no dialect {name!r}: write one of {', '.join(sorted(DIALECTS))}")
    return DIALECTS[name]


def _extra_body(fields: Mapping[str, Any]) -> dict[str, Any]:
    for name, advice in RESERVED_FIELDS.items():
        if name in fields:
            raise ConfigError(f"extra_body can't have {name!r}: {advice}")
    return dict(fields)


def _overridden(capabilities: Capabilities, start: ReasoningStart | None, context: int | None) -> Capabilities:
    settings = {"reasoning_start": None if start is None else _start(start), "context": context}
    return capabilities.model_copy(update={name: value for name, value in settings.items() if value is not None})


def _start(name: ReasoningStart) -> ReasoningStart:
    if name not in get_args(ReasoningStart):
        raise ConfigError(f"no reasoning_start {name!r}: write one of {', '.join(get_args(ReasoningStart))}")
    return name


def _retry_after(headers: Mapping[str, str]) -> float | None:
    milliseconds = parse_seconds(headers.get("retry-after-ms"))
    return parse_retry_after(headers.get("retry-after")) if milliseconds is None else milliseconds / 1000
