"""Tests of workers that call a base model."""

from __future__ import annotations

import pytest

from rl_conductor.agents import DelegatingModel
from rl_conductor.models.scripted import ScriptedModel


class Mute(DelegatingModel):
    """Does not say how it answers."""

    kind = "mute"


def test_a_delegating_model_must_implement_answer() -> None:
    with pytest.raises(TypeError, match=r"abstract.* '?answer"):
        Mute(ScriptedModel("Hi."))  # type: ignore[abstract]
