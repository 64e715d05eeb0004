"""Opens the sockets of servers, and recognises addresses that only this machine can reach."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from rl_conductor.errors import ConfigError


def is_loopback(host: str) -> bool:
    """Returns `True` if only this machine can connect to `host`."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def open_listener(host: str, port: int) -> socket.socket:
    """Opens a socket that listens on a TCP port; 0 for a free one.

    Raises:
        ConfigError: the address can't be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason, _, _ = str(error.strerror or error).partition(" (while")  # Python adds the address
        raise ConfigError(f"can't listen on {host}:{port}: {reason}; pass another --host or --port") from error
    # Connections inherit this option. Without it, the second packet of a response waits up to 40 ms for the
    # acknowledgement of the first. asyncio sets it only on sockets that were created with IPPROTO_TCP.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
