"""How often something may happen: a key's requests, and wrong keys from one address."""

from __future__ import annotations

import time
from collections import OrderedDict
from ipaddress import IPv6Address, ip_address

from rl_conductor_server.errors import ApiError

WRONG_KEYS = 20
"""Most wrong keys a minute from one address."""
ADDRESSES = 10_000
"""Most addresses that are remembered."""


class Rate:
    """So many turns a minute, which may be taken all at once."""

    def __init__(self, a_minute: int) -> None:
        self._a_minute = a_minute
        self._turns = float(a_minute)
        self._counted = time.monotonic()

    @property
    def wait(self) -> float:
        """Seconds until there is a turn."""
        now = time.monotonic()
        self._turns = min(self._a_minute, self._turns + (now - self._counted) * self._a_minute / 60)
        self._counted = now
        return max(0.0, (1 - self._turns) * 60 / self._a_minute)

    def take(self) -> float:
        """Take a turn if there is one; else say in how many seconds there is."""
        wait = self.wait
        if not wait:
            self._turns -= 1
        return wait


class Guesses:
    """Wrong keys by the address that they came from."""

    def __init__(self) -> None:
        self._rates: OrderedDict[str, Rate] = OrderedDict()

    def check(self, host: str) -> None:
        """Raise `ApiError` when this address has guessed too often to be listened to now."""
        rate = self._rates.get(_network(host))
        if rate is not None and rate.wait:
            raise _too_many(rate.wait)

    def wrong(self, host: str) -> None:
        """Count a wrong key. Raises `ApiError` when there were too many."""
        network = _network(host)
        rate = self._rates.setdefault(network, Rate(WRONG_KEYS))
        self._rates.move_to_end(network)
        if len(self._rates) > ADDRESSES:
            self._rates.popitem(last=False)
        if wait := rate.take():
            raise _too_many(wait)


def _network(host: str) -> str:
    """The address itself; of IPv6 the part that its owner can't choose."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    return str(int(address) >> 64) if isinstance(address, IPv6Address) else host


def _too_many(wait: float) -> ApiError:
    message = "too many wrong keys came from this address; come back later"
    return ApiError(message, status=429, code="too_many_wrong_keys", retry_after=wait)
