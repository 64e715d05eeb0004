"""What workers that ask a base model share."""

from __future__ import annotations

import pytest

from rl_conductor.models.scripted import ScriptedModel
from rl_conductor_training.workers.delegating import DelegatingModel


class Mute(DelegatingModel):
    """Does not say how it answers."""

    kind = "mute"


def test_a_worker_has_to_say_how_it_answers() -> None:
    with pytest.raises(TypeError, match=r"abstract.* answer"):
        Mute(ScriptedModel("Hi."))  # type: ignore[abstract]
