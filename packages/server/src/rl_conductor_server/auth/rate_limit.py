"""Rate limits: requests of a key, and failed authentication by address."""

from __future__ import annotations

import time
from collections import OrderedDict
from ipaddress import IPv6Address, ip_address

from rl_conductor_server.errors import ApiError

MAX_FAILURES = 20
"""Failed attempts a minute from one address before it gets status 429."""
MAX_ADDRESSES = 10_000
"""Maximum number of addresses in memory; the least recent ones are dropped."""


class TokenBucket:
    """A token bucket, full at first and refilled evenly over each minute."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._tokens = float(per_minute)
        self._updated = time.monotonic()

    @property
    def wait(self) -> float:
        """Seconds until a token is available."""
        now = time.monotonic()
        self._tokens = min(self._per_minute, self._tokens + (now - self._updated) * self._per_minute / 60)
        self._updated = now
        return max(0.0, (1 - self._tokens) * 60 / self._per_minute)

    def take(self) -> float:
        """Takes a token and returns 0, or returns the seconds until one is available."""
        wait = self.wait
        if not wait:
            self._tokens -= 1
        return wait


class FailedAuthLimiter:
    """Limits the failed authentication attempts of each address."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def check(self, host: str) -> None:
        """Raises `ApiError` if the address had too many failed attempts."""
        bucket = self._buckets.get(_network(host))
        if bucket is not None and bucket.wait:
            raise _too_many_failures(bucket.wait)

    def record_failure(self, host: str) -> None:
        """Counts a failed attempt. Raises `ApiError` if there were too many."""
        network = _network(host)
        bucket = self._buckets.setdefault(network, TokenBucket(MAX_FAILURES))
        self._buckets.move_to_end(network)
        if len(self._buckets) > MAX_ADDRESSES:
            self._buckets.popitem(last=False)
        if wait := bucket.take():
            raise _too_many_failures(wait)


def _network(host: str) -> str:
    """Returns the address, or the /64 network of an IPv6 address, because a client can use all addresses of it."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    return str(int(address) >> 64) if isinstance(address, IPv6Address) else host


def _too_many_failures(wait: float) -> ApiError:
    message = "too many invalid keys from this address; try again later"
    return ApiError(message, status=429, code="too_many_wrong_keys", retry_after=wait)
