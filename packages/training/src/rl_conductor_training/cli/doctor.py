"""The training package's part of `rl-conductor doctor`."""

from __future__ import annotations

from collections.abc import Iterator

from rl_conductor.cli.commands.doctor import Finding
from rl_conductor.errors import ConfigError


def sandbox() -> Iterator[Finding]:
    """Reports the confinement of model-written code, which some tasks and workers run."""
    try:
        # Imported here because some systems have no limits on processes.
        from rl_conductor_training.sandbox.sandbox import describe_confinement, is_confined  # noqa: PLC0415
    except ConfigError as error:
        yield Finding(False, "sandbox", str(error))
        return
    cure = "" if is_confined() else "run coders and coding tasks in a virtual machine"
    yield Finding(is_confined(), "sandbox", describe_confinement(), cure)
