from __future__ import annotations

import inspect
import ssl
from typing import Any

import certifi
import httpx2
import pytest

from rl_conductor import model
from rl_conductor.models.anthropic.adapter import AnthropicModel
from rl_conductor.models.google.adapter import GoogleModel
from rl_conductor.models.openai.adapter import OpenAIModel
from rl_conductor.models.tls import tls_context


def context_of(client: Any) -> ssl.SSLContext:
    """Returns the TLS context of a client of httpx2."""
    context = client._transport._pool._ssl_context
    assert isinstance(context, ssl.SSLContext)
    return context


async def test_clients_of_all_vendors_share_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the cache by which `conftest.py` spares the clients of tests the same work.
    monkeypatch.setattr(ssl, "create_default_context", inspect.unwrap(ssl.create_default_context))
    contexts = []
    for name in ("openai:gpt-5", "openai:gpt-5-mini", "anthropic:claude-sonnet-4-5", "google:gemini-2.5-flash"):
        made = model(name, api_key="none")
        if isinstance(made, GoogleModel):
            inner = made._clients.get()._api_client
            contexts += [context_of(inner._httpx_client), inner._websocket_ssl_ctx["ssl"]]
            contexts.append(context_of(made._connections.get()))
        else:
            assert isinstance(made, OpenAIModel | AnthropicModel)
            contexts.append(context_of(made._clients.get()._client))
        await made.aclose()
    assert len(contexts) == 6
    assert len(set(contexts)) == 1
    assert contexts[0].verify_mode == ssl.CERT_REQUIRED
    assert contexts[0].check_hostname


def test_other_certificates_make_another_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    default = tls_context(httpx2)
    monkeypatch.setenv("SSL_CERT_FILE", certifi.where())
    other = tls_context(httpx2)
    assert other is not default
    assert tls_context(httpx2) is other
    monkeypatch.delenv("SSL_CERT_FILE")
    assert tls_context(httpx2) is default
