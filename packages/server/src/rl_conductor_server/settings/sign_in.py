"""Sign-in to the web pages at an OpenID Connect provider, and the people who may see them."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import Field

from rl_conductor.pool.model_entry import Entry
from rl_conductor_server.settings.names import EntryName

SIGN_IN_SECONDS = 600
"""Time to sign in at an OpenID Connect provider."""


class PeopleEntry(Entry):
    """People by their emails and groups, as the provider states them."""

    emails: frozenset[str] = frozenset()
    """Email addresses, in upper or lower case; they count only if the provider has verified them."""
    groups: frozenset[str] = frozenset()
    """Names of groups or roles, exactly as in the claim that `groups_claim` names."""

    def contains(self, email: str | None, groups: Collection[str]) -> bool:
        """Returns whether somebody is listed by their email, ignoring case, or a group."""
        is_listed = email is not None and email.lower() in {listed.lower() for listed in self.emails}
        return is_listed or bool(self.groups & frozenset(groups))


class OidcEntry(Entry):
    """Sign-in to the pages with OpenID Connect: `[oidc]`."""

    issuer: str = Field(
        pattern=r"^https://[^?#]+$|^http://(localhost|127\.0\.0\.1)(:\d+)?(/[^?#]*)?$",
        examples=["an https address without '?' and '#', such as issuer = \"https://login.example.com\""],
    )
    """The provider's address, exactly as its metadata has it."""
    client_id: str = Field(examples=["the id under which the provider knows this server"])
    """The id under which the provider knows this server."""
    client_secret_env: str = "OIDC_CLIENT_SECRET"  # noqa: S105  the name of a variable
    """The environment variable with the client secret."""
    public_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^/?#]+$",
        examples=['scheme://host without a path, such as public_url = "https://conductor.example.com"'],
    )
    """The address of this server in browsers, such as `https://conductor.example.com`; `None` means that of the
    request."""
    scopes: tuple[str, ...] = ("openid", "email", "profile")
    """The scopes that are requested; add what your provider needs to state groups, such as `groups`."""
    groups_claim: str = "groups"
    """The claim with the list of a person's groups or roles: its name, or the path to it in other claims, such as
    `realm_access.roles`. If there is a claim of this very name, it is used, even if the name has dots."""
    admins: PeopleEntry = PeopleEntry()
    """People who see everything."""
    readers: dict[EntryName, PeopleEntry] = Field(default_factory=dict)
    """People who see only the runs of one API key, by its name."""

    def role_of(self, email: str | None, groups: Collection[str]) -> tuple[bool, str | None]:
        """Returns whether somebody may see the pages, and the only key of the runs that they may see, if any."""
        if self.admins.contains(email, groups):
            return True, None
        key = next((name for name, people in self.readers.items() if people.contains(email, groups)), None)
        return key is not None, key
