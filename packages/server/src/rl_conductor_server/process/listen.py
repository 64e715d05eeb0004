"""Opens the listening socket and configures uvicorn."""

from __future__ import annotations

import asyncio
import math
import socket

from uvicorn import Config, Server

from rl_conductor._internal.sockets import is_loopback, open_listener
from rl_conductor.errors import ConfigError
from rl_conductor_server.app import service_app
from rl_conductor_server.process.tuning import max_connections
from rl_conductor_server.service import Service
from rl_conductor_server.settings import Settings
from rl_conductor_server.store.database import redact_url
from rl_conductor_server.transport.connection_limit import ConnectionLimit
from rl_conductor_server.transport.http_protocol import LimitingProtocol

REPLY_SECONDS = 5
"""Seconds after the draining in which the replies of cancelled runs are sent."""
KEEP_ALIVE_SECONDS = 75
"""Seconds after which an idle connection is closed: later than load balancers close theirs, mostly after 60.

One that sends a request at the moment when the server closes the connection would lose it.
"""


def listening_socket(settings: Settings, *, has_stored_keys: bool = False) -> socket.socket:
    """Opens the socket of the settings; without an API key in them or in the store, only on a loopback address.

    Raises:
        ConfigError: the address is not a loopback address, or can't be bound.
    """
    if not settings.keys and not has_stored_keys and not is_loopback(settings.host):
        raise ConfigError(
            f"the store {redact_url(settings.store.url)} has no API key, so anyone who can reach {settings.host} could "
            "spend your money: create one with 'rl-conductor keys create NAME' and the --config or --store of the "
            "server, if it has one, or listen on 127.0.0.1"
        )
    return open_listener(settings.host, settings.port)


def http_server(service: Service) -> Server:
    """Creates a server that stops on a signal, after draining the runs in progress."""
    intake = service.settings.intake
    limit = ConnectionLimit(max_connections(intake))

    class Protocol(LimitingProtocol):
        seconds = intake.client_seconds
        idle_seconds = KEEP_ALIVE_SECONDS
        header_bytes = intake.header_bytes
        connection_limit = limit

    config = Config(
        service_app(service, max_connections=limit.maximum),
        http=Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(intake.drain_seconds) + REPLY_SECONDS,
    )
    return _Server(config, service)


class _Server(Server):
    """Ends open event streams and runs at the shutdown, so that their clients get a reply.

    By itself, uvicorn would wait for them, and then close their connections.
    """

    def __init__(self, config: Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        stopping = self._service.stopping
        stopping.set()
        draining = asyncio.create_task(self._service.runs.drain(stopping.remaining_seconds))
        await super().shutdown(sockets)
        await draining
