"""Reports runs as OpenTelemetry spans and metrics, following the semantic conventions for generative AI.

In: a run's events, through an observer. Out: spans and metrics, without message content unless it is enabled. Only the
API is needed; without an SDK nothing is recorded.
"""

from rl_conductor.errors import ConfigError

try:
    from rl_conductor.telemetry.exporting import called_by, exporting
    from rl_conductor.telemetry.instrumenting import instrument
except ImportError as missing:
    raise ConfigError("telemetry needs more: pip install 'rl-conductor[telemetry]'") from missing

__all__ = ["called_by", "exporting", "instrument"]
