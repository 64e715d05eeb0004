"""A server on a socket: where it may listen, and how uvicorn is told to run it."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from uvicorn import Config, Server

from rl_conductor.errors import ConfigError
from rl_conductor_server.api.body import PatientProtocol
from rl_conductor_server.app import create_app
from rl_conductor_server.service import Service
from rl_conductor_server.settings import Settings


def listening_socket(settings: Settings) -> socket.socket:
    """The socket that these settings name; without an API key, on this machine only.

    Raises:
        ConfigError: it may not or can't be opened.
    """
    if not settings.keys and not is_loopback(settings.host):
        raise ConfigError(
            f"no API key is set, so anybody who reaches {settings.host} could spend your money: add a [keys.NAME] "
            "table ('rl-conductor serve --new-key NAME' writes one), or listen on 127.0.0.1"
        )
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(f"can't listen on {settings.host}:{settings.port}: {error.strerror or error}") from error
    # Connections inherit it. Without it an answer's second packet waits 40 ms for the first to be acknowledged; asyncio
    # sets it only on sockets that were made for TCP by name.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def http_server(service: Service) -> Server:
    """A server that ends on a signal, once what runs has come to its end."""
    intake = service.settings.intake

    class Protocol(PatientProtocol):
        seconds = intake.client_seconds

    config = Config(
        create_app(service),
        http=Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=intake.header_bytes,
        timeout_graceful_shutdown=max(1, round(intake.drain_seconds)),
    )
    return _Server(config, service)


class _Server(Server):
    """Tells those who only listen that it stops; it would wait for them to leave."""

    def __init__(self, config: Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests and end."""
        self._service.stopping.set()
        await super().shutdown(sockets)
