"""Where spans and metrics go, by the standard `OTEL_*` variables, for programs of ours: `ask`, `run` and the server."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal

from opentelemetry import context
from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rl_conductor.errors import ConfigError
from rl_conductor.telemetry.instrumenting import instrument

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from rl_conductor.telemetry.delivery import Delivery

log = logging.getLogger("rl_conductor.telemetry")

Signal = Literal["traces", "metrics"]
SIGNALS: tuple[Signal, ...] = ("traces", "metrics")

PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
"""The exporters of each protocol, as they are registered."""


@contextmanager
def exporting(tell: Callable[[str], object] = log.warning) -> Iterator[None]:
    """Export what runs in the block as the `OTEL_*` variables say; without them, nothing is set up.

    Where the application or `opentelemetry-instrument` has set up an SDK already, that one is used. Else the end of the
    block waits a short while until all is sent, and has `tell` say what was not.

    Raises:
        ConfigError: a variable asks for what is not installed.
    """
    with ExitStack() as ending:
        if not isinstance(get_tracer_provider(), ProxyTracerProvider):
            ending.callback(instrument())
        elif _exporters("traces") or _exporters("metrics"):
            delivery = _set_up()
            ending.callback(lambda: tell(lost) if (lost := delivery.end()) else None)
            ending.callback(instrument(tracer_provider=delivery.tracers, meter_provider=delivery.meters))
        yield


@contextmanager
def called_by(headers: Mapping[str, str]) -> Iterator[None]:
    """Runs that begin in the block belong to the trace that a request's `traceparent` names, if it names one."""
    before = context.attach(TraceContextTextMapPropagator().extract(headers))
    try:
        yield
    finally:
        context.detach(before)


def _set_up() -> Delivery:
    try:
        from rl_conductor.telemetry.delivery import Delivery  # noqa: PLC0415  slow to import, and only needed here
    except ImportError as missing:
        raise ConfigError("exporting telemetry needs more: pip install 'rl-conductor[telemetry]'") from missing
    spans, metrics = ([_made(signal, name) for name in _exporters(signal)] for signal in SIGNALS)
    return Delivery(spans, metrics, _resource())


def _resource() -> Resource:
    """This service, under our own name unless the variables give another."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415

    return Resource.create({"service.name": "rl-conductor"}).merge(OTELResourceDetector().detect())


def _exporters(signal: Signal) -> list[str]:
    """The exporters that the variables name.

    Elsewhere `otlp` on this machine is assumed when nothing is said; but nobody should wait for a collector they lack.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    at = any(_variable("OTEL_EXPORTER_OTLP", part, "ENDPOINT") for part in ("", signal))
    named = _variable("OTEL", signal, "EXPORTER") or ("otlp" if at else "none")
    return [name for name in (part.strip() for part in named.split(",")) if name not in ("none", "")]


def _made(signal: Signal, name: str) -> Any:
    """An exporter, configured by the variables that are its own."""
    if name == "otlp":
        said = (_variable("OTEL_EXPORTER_OTLP", part, "PROTOCOL") for part in (signal, ""))
        protocol = next(filter(None, said), "http/protobuf")
        name = PROTOCOLS.get(protocol, protocol)
    for found in entry_points(group=f"opentelemetry_{signal}_exporter", name=name):
        return found.load()()
    raise ConfigError(
        f"no exporter {name!r} for {signal} is installed, which an OTEL_* variable asks for: install it, or use "
        "'otlp' with the protocol 'http/protobuf' (pip install 'rl-conductor[telemetry]'), or 'none'"
    )


def _variable(first: str, part: str, last: str) -> str:
    return os.environ.get("_".join(word for word in (first, part.upper(), last) if word), "").strip()
