"""The names of tables that users choose, such as `[keys.NAME]`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

NAME_FORM = "a name of up to {} letters, digits, '_', '.' and '-', the first of them a letter or a digit"

EntryName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$", description=NAME_FORM.format(64))]
"""The name of a key, an administrator or a model."""
ExperimentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,47}$", description=NAME_FORM.format(48))]
"""The name of an experiment."""
