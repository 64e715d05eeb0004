"""Checks ID tokens of an OpenID Connect provider, and finds claims in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from joserfc import jwt
from joserfc.errors import ExpiredTokenError, InvalidClaimError, JoseError, MissingClaimError
from joserfc.jwk import KeySet

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
"""Signatures by a key pair; with a shared secret, a client could forge a token."""
LEEWAY_SECONDS = 60
"""Allowed difference between the provider's clock and the store's."""
CLOCKS = "the clock of the provider and that of this server's store differ"
WRONG_CLAIMS = {
    "aud": "is for another application; client_id in [oidc] must be the id that the provider gave this server",
    "azp": "is for another application; client_id in [oidc] must be the id that the provider gave this server",
    "iss": "names another issuer; issuer in [oidc] must be the address in the provider's metadata",
    "nonce": "belongs to another sign-in",
    "iat": f"is from the future: {CLOCKS}",
    "nbf": f"is not valid yet: {CLOCKS}",
}
"""Why a token is refused, by the claim that is wrong."""


class RefusedTokenError(Exception):
    """A token is refused; the message follows "the provider's token"."""


def read_signed_token(id_token: str, keys: KeySet) -> jwt.Token:
    """Returns a token that one of the provider's keys has signed.

    Raises:
        RefusedTokenError: it has no such signature.
    """
    try:
        return jwt.decode(id_token, keys, algorithms=list(ALGORITHMS))
    except (JoseError, ValueError) as error:
        reason = "is not signed with a key that the provider publishes, by an algorithm with key pairs"
        raise RefusedTokenError(f"{reason} ({error})") from error


def check_claims(claims: dict[str, Any], *, issuer: str, client_id: str, nonce: str, now: float) -> None:
    """Checks the claims of a token.

    Raises:
        RefusedTokenError: the token is not for this sign-in, or not valid now.
    """
    registry = jwt.JWTClaimsRegistry(
        now=int(now),
        leeway=LEEWAY_SECONDS,
        iss={"essential": True, "value": issuer},
        aud={"essential": True, "value": client_id},
        azp={"value": client_id},
        nonce={"essential": True, "value": nonce},
        sub={"essential": True},
        exp={"essential": True},
        iat={"essential": True},
    )
    try:
        registry.validate(claims)
    except ExpiredTokenError as error:
        raise RefusedTokenError(f"has expired: {CLOCKS}") from error
    except MissingClaimError as error:
        raise RefusedTokenError(f"lacks {error.claim}") from error
    except InvalidClaimError as error:
        raise RefusedTokenError(WRONG_CLAIMS.get(error.claim, f"has an invalid {error.claim}")) from error


def find_claim(claims: Mapping[str, Any], name: str) -> Any:
    """Returns the claim of this name or, if there is none, the one at this path, such as `realm_access.roles`.

    Names may contain dots themselves, as web addresses do, and so may the parts of a path.
    """
    if name in claims:
        return claims[name]
    for dot in re.finditer(r"\.", name):
        inner = claims.get(name[: dot.start()])
        value = find_claim(inner, name[dot.end() :]) if isinstance(inner, dict) else None
        if value is not None:
            return value
    return None
