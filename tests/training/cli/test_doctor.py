"""Tests of the sandbox check of `doctor`."""

from __future__ import annotations

import platform
from collections.abc import Callable

import pytest
from typer.testing import Result

from rl_conductor_training.cli.doctor import sandbox
from rl_conductor_training.sandbox.sandbox import is_confined


@pytest.mark.skipif(not is_confined(), reason="this kernel has no Landlock or seccomp")
def test_doctor_reports_confinement_by_the_kernel() -> None:
    (finding,) = sandbox()

    assert finding == (True, "sandbox", "programs are confined by the kernel (Landlock and seccomp)", "")


def test_doctor_reports_the_feature_that_confinement_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    is_confined.cache_clear()
    try:
        (finding,) = sandbox()
    finally:
        is_confined.cache_clear()

    assert not finding.good
    assert "stops accidents but not attacks" in finding.state
    assert "on riscv64 is not Linux on x86_64 or aarch64" in finding.state
    assert "virtual machine" in finding.cure


def test_the_command_shows_the_sandbox_in_a_section_of_its_own(cli: Callable[..., Result]) -> None:
    assert "Sandbox\n" in cli("doctor").stdout
