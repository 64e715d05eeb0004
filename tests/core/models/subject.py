"""The adapters of the contract suite, with the scenarios and faults that each is tested with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rl_conductor.models import Model

from .wire.base import FAILURES, REPLIES, Wire, WireServer

SCENARIOS = frozenset(REPLIES) | {"echo", "wire"}
"""The scenarios of every adapter of a service; `wire` is for tests that look at what was sent."""
FAULTS = frozenset(FAILURES) | {
    "malformed",
    "html",
    "gateway",
    "wrong-shape",
    "truncated",
    "unfinished",
    "breaks",
    "redirect",
    "hang",
    "stall",
    "trickle",
    "held",
    "byte-order-mark",
}
"""The faults of a service."""


@dataclass(frozen=True)
class Adapter:
    """A row of the table in `conftest.py`."""

    name: str
    """The provider."""
    make: Callable[..., Model]
    """`make(scenario, url, **options)`: a model of that name, whose service is at `url`."""
    scenarios: frozenset[str]
    """Those of `SCENARIOS` and `FAULTS` that it is tested with."""
    service: type[WireServer] | None = None
    """`None` for a model in this process, whose `url` is empty."""
    variables: tuple[str, str] = ("", "")
    """The variables of its key and of its address."""
    path: str = ""
    """The path in its address."""
    prefix: str = ""
    """Put before a scenario, where a provider tells protocols by the model's name."""
    environment: tuple[tuple[str, str], ...] = ()
    """Other variables that it needs."""
    sampling: frozenset[str] = frozenset()
    """The fields of `Sampling` that it sends."""

    @property
    def id(self) -> str:
        """Its name in the names of tests."""
        return f"{self.name}-{self.prefix.strip('.-')}" if self.prefix else self.name


@dataclass
class Subject:
    """An adapter under test, and what its service saw."""

    adapter: Adapter
    service: WireServer | None = None
    models: list[Model] = field(default_factory=list)

    def model(self, scenario: str, **options: Any) -> Model:
        """A model that behaves as `scenario` says; closed when the test ends."""
        url = options.pop("url", self.service.url if self.service else "")
        return self.keep(self.adapter.make(scenario, url, **options))

    def keep(self, model: Model) -> Model:
        """`model`, closed when the test ends."""
        self.models.append(model)
        return model

    @property
    def url(self) -> str:
        """The address of its service, as users write it."""
        return f"{self.wire.url}{self.adapter.path}"

    @property
    def wire(self) -> WireServer:
        """The service, for tests that need `wire`."""
        assert self.service is not None
        return self.service

    @property
    def sent(self) -> Wire:
        """The latest request that was sent."""
        return self.wire.requests[-1]
