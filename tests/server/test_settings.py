from __future__ import annotations

from pathlib import Path

import pytest

from rl_conductor.config.discovery import DiscoveredPool
from rl_conductor.errors import ConfigError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.workflow.limits import Limits
from rl_conductor_server.catalog import catalogue
from rl_conductor_server.listen import is_loopback, listening_socket
from rl_conductor_server.settings import ProfileEntry, Settings, read_settings

HASH = "0" * 64


def read(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "conductor.toml"
    path.write_text(text)
    return read_settings(path)


def found(**options: object) -> DiscoveredPool:
    model = ScriptedModel("said")
    return DiscoveredPool(WorkerPool({"a": model, "b": model}), Planner(model=model), ("why",), **options)  # type: ignore[arg-type]


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        f"""
        pool = "pool.toml"
        port = 9000
        admin_sha256 = "{HASH}"
        [store]
        url = "postgres://db/runs"
        retain_days = 7
        [intake]
        running = 5
        [keys.red]
        sha256 = "{HASH}"
        usd = 20
        per = "day"
        models = ["conductor-mini"]
        [profiles.house]
        base = "mini"
        released = 2026-01-02
        limits = {{ usd = 0.5, steps = 4 }}
        policy = {{ deny = ["b"] }}
        """,
    )
    assert settings.pool == tmp_path / "pool.toml"
    assert settings.keys["red"].per == "day"
    (house,) = [one for one in catalogue(found(), settings.profiles) if one.name == "house"]
    assert house.pinned == "house-2026-01-02"
    assert (house.conductor.limits.steps, house.conductor.limits.rounds, house.conductor.limits.seconds) == (4, 1, 60)
    assert house.conductor.policy.deny == {"b"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prot = 1", "prot: Extra inputs are not permitted"),
        ("port = 99999", "port: "),
        ("[keys.red]\nsha256 = 'short'", "keys.red.sha256: "),
        ("[keys.red]", "keys.red.sha256: Field required"),
        ("[keys.'a b']\nsha256 = 'x'", "keys.a b"),
        ("[profiles.x]\nbase = 'mini'", "profiles.x.released: Field required"),
        ("pool = 'p.toml'\n[workers.a]\nmodel = 'openai:x'", "both 'pool' and"),
        ("[planner]\nmodel = 'openai:x'", "no .workers. beside it"),
        ("port = ", "is not TOML"),
        (f"[keys.a]\nsha256 = '{HASH}'\n[keys.b]\nsha256 = '{HASH}'", "keys.a and keys.b have one sha256"),
    ],
)
def test_a_wrong_file_is_refused_and_the_key_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(tmp_path, text)


def test_a_hash_that_is_wrong_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, "[keys.red]\nsha256 = 'the key itself, by mistake'")
    assert "by mistake" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"can't read '.*none\.toml'"):
        read_settings(tmp_path / "none.toml")


def test_our_own_names_can_not_be_taken() -> None:
    with pytest.raises(ConfigError, match="conductor-mini: this name is taken"):
        catalogue(found(), {"conductor-mini": ProfileEntry.model_validate({"released": "2026-01-02"})})


def test_what_was_found_bounds_our_own_plans_but_not_those_that_are_written_out() -> None:
    entry = ProfileEntry.model_validate({"released": "2026-01-02", "limits": {"steps": 5}})
    served = {one.name: one for one in catalogue(found(limits=Limits(steps=3)), {"house": entry})}
    assert {name: one.conductor.limits.steps for name, one in served.items()} == {
        "conductor-mini": 2,
        "conductor-ultra": 3,
        "house": 5,
    }


def test_a_fingerprint_tells_pools_apart() -> None:
    (mini, _), (same, _) = catalogue(found(), {}), catalogue(found(), {})
    other = DiscoveredPool(WorkerPool({"a": ScriptedModel("x", name="other")}), Planner(model=ScriptedModel("")), ())
    (changed, _) = catalogue(other, {})
    assert mini.fingerprint == same.fingerprint != changed.fingerprint


@pytest.mark.parametrize(
    ("host", "is_one"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False)]
)
def test_without_a_key_only_this_machine_may_ask(host: str, is_one: bool) -> None:
    assert is_loopback(host) == is_one
    if is_one:
        listening_socket(Settings(host=host, port=0)).close()
    else:
        with pytest.raises(ConfigError, match="no API key is set"):
            listening_socket(Settings(host=host, port=0))


def test_a_port_that_is_taken_is_named() -> None:
    with listening_socket(Settings(port=0)) as taken, pytest.raises(ConfigError, match="can't listen on"):
        listening_socket(Settings(port=taken.getsockname()[1]))
