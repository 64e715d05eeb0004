"""Runs as OpenTelemetry spans and metrics, by the conventions for generative AI; made from events, by `observing`.

What was said is left out unless it is asked for. Only the API is needed: where no SDK is set up, nothing is recorded.
"""

from rl_conductor.errors import ConfigError

try:
    from rl_conductor.telemetry.exporting import called_by, exporting
    from rl_conductor.telemetry.instrumenting import instrument
except ImportError as missing:
    raise ConfigError("telemetry needs more: pip install 'rl-conductor[telemetry]'") from missing

__all__ = ["called_by", "exporting", "instrument"]
