"""The signal with which a model leaves a run that its host will resume: an agent that waits for a person."""

from __future__ import annotations

from rl_conductor.types import Usage


class PauseSignal(BaseException):
    """Passes through the core to the host of `Stepwise`, which runs the step again once it can go on.

    It is no failure, so that the core neither retries the call nor replaces the worker, but only records it.
    """

    usage = Usage.model_construct()  # a checked one would build its schema at import
    """Usage of the model since it was called."""
