"""Whether libraries are installed."""

from __future__ import annotations

import pytest

from rl_conductor._internal.version import is_importable


@pytest.mark.parametrize(
    ("module", "expected"),
    [("json", True), ("json.decoder", True), ("no_such_package", False), ("no_such_package.module", False)],
)
def test_a_module_is_looked_up_with_its_packages(module: str, expected: bool) -> None:
    assert is_importable(module) is expected
