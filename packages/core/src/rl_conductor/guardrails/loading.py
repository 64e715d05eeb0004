"""Creates the guardrails of a pool file."""

from __future__ import annotations

from collections.abc import Sequence

from rl_conductor._internal.imports import import_object
from rl_conductor.errors import ConfigError
from rl_conductor.guardrails.base import Guardrail
from rl_conductor.pool.pool_file import GuardrailEntry

TYPES = {
    "presidio": "rl_conductor.guardrails.presidio:PresidioGuardrail",
    "openai-moderation": "rl_conductor.guardrails.moderation:ModerationGuardrail",
    "groundedness": "rl_conductor.guardrails.groundedness:GroundednessGuardrail",
}
"""The built-in types, by their name in a pool file."""


def build_guardrails(entries: Sequence[GuardrailEntry]) -> tuple[Guardrail, ...]:
    """Creates guardrails, in the order of the file.

    Raises:
        ConfigError: a type does not exist, its library is not installed, or an option is invalid or an API key.
    """
    return tuple(map(_build, entries))


def _build(entry: GuardrailEntry) -> Guardrail:
    if "api_key" in entry.options:
        raise ConfigError(
            f"guardrail {entry.type!r}: options.api_key is not allowed in a file; set it in the environment"
        )
    if entry.type not in TYPES and ":" not in entry.type:
        raise ConfigError(
            f"guardrails has the type {entry.type!r}; write {', '.join(map(repr, TYPES))} or 'module:Class'"
        )
    names = entry.model_fields_set - {"type", "options"}
    settings = {name: value for name in names if (value := getattr(entry, name)) is not None}
    guardrail_class = import_object(TYPES.get(entry.type, entry.type))
    try:
        guardrail = guardrail_class(**entry.options, **settings)
    except (TypeError, ValueError, AttributeError) as error:  # a value of the wrong type
        raise ConfigError(f"guardrail {entry.type!r}: invalid options: {error}") from error
    if not isinstance(guardrail, Guardrail):
        raise ConfigError(f"guardrail {entry.type!r} is not a subclass of rl_conductor.guardrails.Guardrail")
    return guardrail
