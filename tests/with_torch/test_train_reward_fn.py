from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.timeout(600)
def test_processes_that_share_a_question_compute_the_same_rewards(shared_training: list[Any]) -> None:
    first, second = (said["step"] for said in shared_training)
    assert first["rewards"] + second["rewards"] == [1.0, 0.0, 1.2, 1.1]
    assert (first["kept"], second["kept"]) == (4, 0)
    assert all((metrics["usd"], metrics["calls"]) == (0.06, 3) for metrics in (first, second))
