"""The plans of a training file as a `verifiers` environment, for prime-rl and whatever else trains on those."""

from verifiers_conductor.harness import OneCall, OneCallConfig
from verifiers_conductor.taskset import ConductorConfig, ConductorTaskset

__all__ = ["ConductorConfig", "ConductorTaskset", "OneCall", "OneCallConfig"]
