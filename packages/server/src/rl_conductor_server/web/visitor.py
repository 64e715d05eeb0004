"""`Visitor`: who looks at the pages, and which runs they may see."""

from __future__ import annotations

from dataclasses import dataclass

from rl_conductor_server.service import Service
from rl_conductor_server.settings import OidcEntry


@dataclass(frozen=True)
class Visitor:
    """An administrator, or a reader of the runs of one API key."""

    service: Service
    can_sign_out: bool
    name: str | None = None
    """The email of a visitor who signed in at the provider."""
    key: str | None = None
    """The only API key whose runs a reader may see; `None` for administrators."""

    @property
    def is_admin(self) -> bool:
        return self.key is None


def role_of(entry: OidcEntry, email: str | None, groups: frozenset[str]) -> tuple[bool, str | None]:
    """Returns whether somebody may see the pages, and the only key whose runs they may see, if any."""
    if entry.admins.contains(email, groups):
        return True, None
    key = next((name for name, people in entry.readers.items() if people.contains(email, groups)), None)
    return key is not None, key
