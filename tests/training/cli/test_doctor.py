"""What `doctor` says of the sandbox."""

from __future__ import annotations

import platform
from collections.abc import Callable

import pytest
from typer.testing import Result

from rl_conductor_training.cli.doctor import sandbox
from rl_conductor_training.sandbox.sandbox import is_confined


@pytest.mark.skipif(not is_confined(), reason="this kernel has no Landlock or seccomp")
def test_doctor_says_that_the_kernel_confines_programs() -> None:
    (found,) = sandbox()

    assert found == (True, "sandbox", "programs are confined by the kernel (Landlock and seccomp)", "")


def test_doctor_says_what_the_machine_lacks_to_confine_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    is_confined.cache_clear()
    try:
        (found,) = sandbox()
    finally:
        is_confined.cache_clear()

    assert not found.good
    assert "stops accidents but no attack" in found.state
    assert "on riscv64 is not Linux on x86_64 or aarch64" in found.state
    assert "virtual machine" in found.cure


def test_the_command_shows_the_sandbox_in_a_section_of_its_own(cli: Callable[..., Result]) -> None:
    assert "Sandbox\n" in cli("doctor").stdout
