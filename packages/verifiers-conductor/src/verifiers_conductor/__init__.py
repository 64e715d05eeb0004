"""The questions, workers and rewards of a training file as a `verifiers` environment, for trainers such as prime-rl."""

from verifiers_conductor.harness import OneCall, OneCallConfig
from verifiers_conductor.taskset import ConductorConfig, ConductorTaskset

__all__ = ["ConductorConfig", "ConductorTaskset", "OneCall", "OneCallConfig"]
