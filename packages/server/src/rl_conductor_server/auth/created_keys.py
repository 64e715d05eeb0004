"""Creates, rotates and revokes the keys in the store. `keys` has those of the settings, too."""

from __future__ import annotations

from operator import not_

from pydantic import Field, TypeAdapter, ValidationError, ValidationInfo, field_validator

from rl_conductor.errors import ConfigError
from rl_conductor_server.auth.key_secrets import generate_key
from rl_conductor_server.settings import EntryName, KeyLimits
from rl_conductor_server.store import Store, StoredKey
from rl_conductor_server.store.tables import DAY

MAX_GRACE_SECONDS = 90 * DAY
"""Maximum number of seconds for which the old secret of a rotated key remains valid."""


def check_key_name(name: str) -> None:
    """Raises `ConfigError` if no key may have this name."""
    try:
        TypeAdapter(EntryName).validate_python(name)
    except ValidationError as error:
        allowed = "up to 64 ASCII letters and digits, with '.', '_' and '-' allowed after the first"
        raise ConfigError(f"{name!r} can't be the name of a key; use {allowed}") from error


class KeyNotFoundError(ConfigError):
    """The store has no valid key of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the store has no valid key {name!r}; 'rl-conductor keys list' lists its keys")


class KeyTerms(KeyLimits):
    """The limits of a key that is created at run time."""

    metrics: bool = Field(default=False, exclude_if=not_)  # `keys list` shows what is limited or granted
    expires_in_days: float | None = Field(default=None, gt=0, le=36_500)
    """Days until the key expires; `None` means never."""
    admin: bool = False
    """An administrator's key, for `/admin` and the pages, and not for requests."""

    @field_validator("admin")
    @classmethod
    def _has_no_limits(cls, admin: bool, info: ValidationInfo) -> bool:
        limits = [name for name, field in KeyLimits.model_fields.items() if info.data.get(name) != field.default]
        if admin and limits:
            names = ", ".join(limits)
            raise ValueError(f"can't be combined with {names}: an administrator's key sends no requests")
        return admin


async def create_key(store: Store, name: str, terms: KeyTerms) -> str:
    """Stores a new key and returns its secret. Raises `ConfigError` if the name was used before."""
    secret, sha256 = generate_key()
    now = store.now()
    expires = None if terms.expires_in_days is None else now + terms.expires_in_days * DAY
    has_budget = terms.usd is not None or terms.tokens is not None
    entry = terms.model_dump_json(
        exclude={"expires_in_days", "admin"} | (set() if has_budget else {"per"}), exclude_none=True
    )
    key = StoredKey(sha256=sha256, name=name, admin=terms.admin, entry=entry, created=now, expires=expires)
    if not await store.keys.add(key):
        raise ConfigError(f"a key {name!r} exists, or existed and was revoked; choose another name, or rotate it")
    return secret


async def rotate_key(store: Store, name: str, *, grace_seconds: float) -> str:
    """Stores a new secret of a key and returns it; the old one remains valid for `grace_seconds`.

    Raises:
        KeyNotFoundError: the store has no valid key of this name.
        ConfigError: the old secret would remain valid for too long.
    """
    if not 0 <= grace_seconds <= MAX_GRACE_SECONDS:
        raise ConfigError(f"the old secret can remain valid for 0 to {MAX_GRACE_SECONDS:,} s, not {grace_seconds:g}")
    secret, sha256 = generate_key()
    if not await store.keys.rotate(name, sha256, grace_seconds=grace_seconds):
        raise KeyNotFoundError(name)
    return secret


async def revoke_key(store: Store, name: str) -> None:
    """Revokes a key with all its secrets. Raises `KeyNotFoundError` if the store has no valid key of this name."""
    if not await store.keys.revoke(name):
        raise KeyNotFoundError(name)
