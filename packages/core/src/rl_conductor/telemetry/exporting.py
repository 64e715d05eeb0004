"""Exports telemetry of the command line and the server, configured by the standard `OTEL_*` variables."""

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
"""The entry point name of each protocol's exporter."""


@contextmanager
def exporting(warn: Callable[[str], object] = log.warning) -> Iterator[None]:
    """Exports telemetry of runs in the block as configured by `OTEL_*` variables; without them, nothing is set up.

    An SDK that the application or `opentelemetry-instrument` has set up is used as it is. Otherwise the end of the
    block waits up to `SHUTDOWN_TIMEOUT` for delivery, and calls `warn` if data is lost.

    Raises:
        ConfigError: a variable names an exporter that is not installed.
    """
    with ExitStack() as stack:
        if not isinstance(get_tracer_provider(), ProxyTracerProvider):
            stack.callback(instrument())
        elif _exporters("traces") or _exporters("metrics"):
            delivery = _set_up()
            stack.callback(lambda: warn(lost) if (lost := delivery.shut_down()) else None)
            stack.callback(instrument(tracer_provider=delivery.tracers, meter_provider=delivery.meters))
        yield


@contextmanager
def called_by(headers: Mapping[str, str]) -> Iterator[None]:
    """Makes runs in the block part of the trace in a request's `traceparent` header, if there is one."""
    token = context.attach(TraceContextTextMapPropagator().extract(headers))
    try:
        yield
    finally:
        context.detach(token)


def _set_up() -> Delivery:
    try:
        from rl_conductor.telemetry.delivery import Delivery  # noqa: PLC0415  slow to import, and only needed here
    except ImportError as missing:
        raise ConfigError("exporting telemetry needs more: pip install 'rl-conductor[telemetry]'") from missing
    spans, metrics = ([_create_exporter(signal, name) for name in _exporters(signal)] for signal in SIGNALS)
    return Delivery(spans, metrics, _resource())


def _resource() -> Resource:
    """Creates the resource of this service, named `rl-conductor` unless the variables name it."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415

    return Resource.create({"service.name": "rl-conductor"}).merge(OTELResourceDetector().detect())


def _exporters(signal: Signal) -> list[str]:
    """Lists the exporters that the variables configure.

    Unlike other SDKs, the default is none instead of `otlp` on localhost, so that programs don't wait for a collector
    that does not exist.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    has_endpoint = any(_variable("OTEL_EXPORTER_OTLP", part, "ENDPOINT") for part in ("", signal))
    names = _variable("OTEL", signal, "EXPORTER") or ("otlp" if has_endpoint else "none")
    return [name for name in (part.strip() for part in names.split(",")) if name not in ("none", "")]


def _create_exporter(signal: Signal, name: str) -> Any:
    """Creates an exporter, which reads its own variables."""
    if name == "otlp":
        protocols = (_variable("OTEL_EXPORTER_OTLP", part, "PROTOCOL") for part in (signal, ""))
        protocol = next(filter(None, protocols), "http/protobuf")
        name = PROTOCOLS.get(protocol, protocol)
    for entry_point in entry_points(group=f"opentelemetry_{signal}_exporter", name=name):
        return entry_point.load()()
    raise ConfigError(
        f"no exporter {name!r} for {signal} is installed, which an OTEL_* variable asks for: install it, or use "
        "'otlp' with the protocol 'http/protobuf' (pip install 'rl-conductor[telemetry]'), or 'none'"
    )


def _variable(first: str, part: str, last: str) -> str:
    return os.environ.get("_".join(word for word in (first, part.upper(), last) if word), "").strip()
