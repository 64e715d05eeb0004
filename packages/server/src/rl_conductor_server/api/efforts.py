"""The reasoning efforts of the vendors' APIs, and the nearest ones that the server supports."""

from __future__ import annotations

from typing import Literal

from rl_conductor.types import Effort

RequestedEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""The reasoning efforts of all vendors."""
NEAREST_EFFORTS: dict[RequestedEffort, Effort] = {"none": "minimal", "xhigh": "high", "max": "high"}
"""The nearest supported effort of those that are not."""


def nearest_effort(effort: RequestedEffort | None) -> Effort | None:
    return None if effort is None else NEAREST_EFFORTS.get(effort) or effort  # type: ignore[return-value]
