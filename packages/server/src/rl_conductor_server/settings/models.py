"""Models that the server offers beside the built-in ones."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from pydantic import Field

from rl_conductor.config.profiles import ProfileName
from rl_conductor.pool.model_entry import Entry
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy


class ServedModelEntry(Entry):
    """A model that the server offers: `[models.NAME]`."""

    profile: ProfileName = "ultra"
    """The profile whose limits it starts from: `mini` prefers cheap workers, with at most 2 steps and 60 seconds, and
    `ultra` has at most 5 steps and 2 rounds."""
    released: date = Field(examples=["a date, such as released = 2026-01-31"])
    """Part of its pinned name, such as `house-2026-01-31`. Change it whenever you change the rest."""
    limits: Limits = Limits()
    """Limits that replace those of the profile."""
    policy: Policy | None = None
    """The policy of the model; `None` means the pool's."""
    router: Path | None = None
    """A router file, which sends simple requests to a single call; `None` means the pool's router, if it has one."""
