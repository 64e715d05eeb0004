"""TOML files that are read into models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from rl_conductor._internal.toml import read_toml
from rl_conductor.errors import ConfigError


class Service(BaseModel):
    """A table with one field of each kind."""

    port: int = 80
    timeout: float | None = None
    is_public: bool = False
    options: dict[str, Any] = {}


class Services(BaseModel):
    """A file of services."""

    main: Service = Service()
    services: dict[str, Service] = {}
    mirrors: tuple[Service, ...] = ()
    weights: dict[str, float] = {}


def read(tmp_path: Path, text: str) -> Services:
    path = tmp_path / "services.toml"
    path.write_text(text)
    return read_toml(path, Services, "file of services")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("main.port = true", "main.port: write an integer"),
        ("services.a.port = false", "services.a.port: write an integer"),
        ("services.a.timeout = true", "services.a.timeout: write a number"),
        ("[[mirrors]]\n[[mirrors]]\nport = true", "mirrors.1.port: write an integer"),
        ("weights.a = true", "weights.a: write a number"),
    ],
)
def test_a_boolean_is_no_number(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)


def test_booleans_stay_what_they_are_where_they_are_allowed(tmp_path: Path) -> None:
    settings = read(tmp_path, "main = { is_public = true, options = { verbose = true } }")
    assert settings.main == Service(is_public=True, options={"verbose": True})


@pytest.mark.parametrize("text", ["main.port = " + "9" * 5_000, "main.port = 1979-99-99", "a = " + "[" * 50_000])
def test_what_python_can_not_read_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"services\.toml' is (not TOML|nested too deeply)"):
        read(tmp_path, text)
