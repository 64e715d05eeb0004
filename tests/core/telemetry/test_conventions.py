"""The pinned names are those of OpenTelemetry's own package, as far as it has them."""

from __future__ import annotations

import pytest
from opentelemetry.semconv._incubating.attributes import error_attributes, gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics

from rl_conductor.telemetry import conventions

OWN = "rl_conductor."
NEWER = {conventions.WORKFLOW_DURATION}
"""Told of by the conventions' own repository only."""
KNOWN = {
    value
    for module in (gen_ai_attributes, error_attributes, gen_ai_metrics)
    for value in vars(module).values()
    if isinstance(value, str)
}
NAMES = {
    value for value in vars(conventions).values() if isinstance(value, str) and value.startswith(("gen_ai.", "error."))
}


@pytest.mark.parametrize("name", sorted(NAMES - NEWER))
def test_a_pinned_name_is_a_name_of_the_conventions(name: str) -> None:
    assert name in KNOWN
