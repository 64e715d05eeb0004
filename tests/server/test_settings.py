from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rl_conductor._internal.sockets import is_loopback
from rl_conductor.config.discovered_pool import DiscoveredPool
from rl_conductor.errors import ConfigError
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.workflow.limits import Limits
from rl_conductor_server import settings as settings_package
from rl_conductor_server.catalog import build_catalog
from rl_conductor_server.process.listen import listening_socket
from rl_conductor_server.settings import ServedModelEntry, Settings, read_settings

HASH = "0" * 64
MODULES = Path(settings_package.__file__).parent.glob("*.py")


def read(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "server.toml"
    path.write_text(text)
    return read_settings(path)


def found(limits: Limits | None = None) -> DiscoveredPool:
    model = ScriptedModel("said")
    pool = DiscoveredPool(planner=Planner(model=model), pool=WorkerPool({"a": model, "b": model}))
    return pool.replaced(limits=limits)


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        f"""
        pool = "pool.toml"
        port = 9000
        [store]
        url = "postgres://db/runs"
        retain_days = 7
        [intake]
        running = 5
        [admins.ann]
        sha256 = "{HASH}"
        [keys.red]
        sha256 = "{HASH}"
        usd = 20
        per = "day"
        models = ["conductor-mini"]
        [models.house]
        profile = "mini"
        released = 2026-01-02
        limits = {{ usd = 0.5, steps = 4 }}
        policy = {{ deny = ["b"] }}
        """,
    )
    assert settings.pool == tmp_path / "pool.toml"
    assert settings.keys["red"].per == "day"
    (house,) = [one for one in build_catalog(found(), settings.models) if one.name == "house"]
    assert house.pinned == "house-2026-01-02"
    assert (house.conductor.limits.steps, house.conductor.limits.rounds, house.conductor.limits.seconds) == (4, 1, 60)
    assert house.conductor.policy.deny == {"b"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prot = 1", "prot: there is no such setting; did you mean 'port'?"),
        ("port = 99999", "port: "),
        ("[intake]\ndrain_seconds = inf", "intake.drain_seconds: write a finite number"),
        ("[store]\nlease_seconds = inf", "store.lease_seconds: write a finite number"),
        ("[store]\nlease_seconds = 1e-9", "store.lease_seconds: write a number greater than or equal to 1"),
        (
            "[keys.red]\nsha256 = 'short'",
            "keys.red.sha256: write the SHA-256 of a key in 64 digits, as 'rl-conductor serve --new-key",
        ),
        ("[keys.red]", "keys.red.sha256: missing; write the line that 'rl-conductor serve --new-key NAME' prints"),
        (
            "[keys.'a b']\nsha256 = 'x'",
            "keys.a b: write a name of up to 64 letters, digits, '_', '.' and '-', the first",
        ),
        ("[experiments.'a/b']", "experiments.a/b: write a name of up to 48 letters"),
        ("[admins.ann]", "admins.ann.sha256: missing; write the line that 'rl-conductor serve --new-key NAME' prints"),
        (f"[keys.red]\nsha256 = '{HASH}'\nusd = 'ten'", "keys.red.usd: write a number$"),
        (f"[keys.red]\nsha256 = '{HASH}'\nusd = 0.1234567890123", "usd: write no more than 12 decimal places"),
        ("pool = 3", "pool: write a path as a string"),
        ("[models.x]\nreleased = 2026", "released: write a date, such as released = 2026-01-31"),
        ("[models.x]\nreleased = 'soon'", "released: write a date, such as released = 2026-01-31"),
        ("[experiments.x]", 'experiments.x.baseline: missing; write a model, such as baseline = "openai:gpt-6-sol"'),
        (
            "[experiments.x.shadow]\nscorer = 'exact'",
            'scorer: write module:function, such as scorer = "my_scorers:exact"',
        ),
        ("[oidc]\nissuer = 'example.com'", "oidc.issuer: write an https address without '.' and '#', such as issuer ="),
        (
            "[oidc]\npublic_url = 'https://a/b'",
            "oidc.public_url: write scheme://host without a path, such as public_url",
        ),
        ("[models.x]\nprofile = 'mini'", "models.x.released: missing; write a date, such as released = 2026-01-31"),
        ("pool = 'p.toml'\n[workers.a]\nmodel = 'openai:x'", "both 'pool' and"),
        ("[planner]\nmodel = 'openai:x'", "no .workers. beside it"),
        ("port = ", "is not TOML"),
        (f"[keys.a]\nsha256 = '{HASH}'\n[keys.b]\nsha256 = '{HASH}'", "keys.a and keys.b have one sha256"),
    ],
)
def test_an_invalid_file_is_rejected_with_the_key_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(tmp_path, text)


def test_the_error_of_an_invalid_hash_does_not_repeat_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, "[keys.red]\nsha256 = 'the key itself, by mistake'")
    assert "by mistake" not in str(caught.value)


@pytest.mark.parametrize("path", sorted(MODULES), ids=lambda path: path.stem)
def test_each_setting_has_a_description_for_the_reference(path: Path) -> None:
    for table in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)):
        for field, after in pairwise([*table.body, ast.Pass()]):
            if isinstance(field, ast.AnnAssign):
                is_described = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                assert is_described, f"{table.name}.{ast.unparse(field.target)}"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"can't read '.*none\.toml'"):
        read_settings(tmp_path / "none.toml")


def test_a_model_can_not_have_the_name_of_a_built_in_model() -> None:
    with pytest.raises(ConfigError, match="conductor-mini: this name is taken"):
        build_catalog(found(), {"conductor-mini": ServedModelEntry.model_validate({"released": "2026-01-02"})})


def test_the_error_of_a_model_names_its_table() -> None:
    entry = ServedModelEntry.model_validate({"released": "2026-01-02", "policy": {"allow": ["nobody"]}})
    with pytest.raises(ConfigError, match=r"^models\.house: .*nobody"):
        build_catalog(found(), {"house": entry})


def test_limits_of_the_pool_apply_unless_a_model_replaces_them() -> None:
    entry = ServedModelEntry.model_validate({"released": "2026-01-02", "limits": {"steps": 5}})
    served = {one.name: one for one in build_catalog(found(limits=Limits(steps=3)), {"house": entry})}
    assert {name: one.conductor.limits.steps for name, one in served.items()} == {
        "conductor-mini": 2,
        "conductor-ultra": 3,
        "house": 5,
    }


@pytest.mark.parametrize(
    "worker",
    [
        ScriptedModel("x", name="other"),
        {"model": ScriptedModel("x"), "instructions": "Be brief."},
        {"model": ScriptedModel("x"), "description": "knows the law"},
    ],
)
def test_fingerprints_of_different_pools_differ(worker: Any) -> None:
    def fingerprint(worker: Any) -> str:
        pool = DiscoveredPool(planner=Planner(model=ScriptedModel("")), pool=WorkerPool({"a": worker}))
        return next(iter(build_catalog(pool, {}))).fingerprint

    assert fingerprint(ScriptedModel("x")) == fingerprint(ScriptedModel("x")) != fingerprint(worker)


def test_fingerprints_of_workers_with_other_tools_differ() -> None:
    def today() -> str:
        """Returns the date."""
        return "2026-01-01"

    def fingerprint(*tools: Any) -> str:
        workers = WorkerPool({"a": {"model": ScriptedModel("x"), "description": "same", "tools": tools}})
        pool = DiscoveredPool(planner=Planner(model=ScriptedModel("")), pool=workers)
        return next(iter(build_catalog(pool, {}))).fingerprint

    assert fingerprint() != fingerprint(today)


@pytest.mark.parametrize(
    ("host", "is_one"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False)]
)
def test_without_a_key_only_loopback_addresses_are_accepted(host: str, is_one: bool) -> None:
    assert is_loopback(host) == is_one
    if is_one:
        listening_socket(Settings(host=host, port=0)).close()
    else:
        with pytest.raises(ConfigError, match=r"sqlite:///rl-conductor\.db has no API key, .* --config or --store"):
            listening_socket(Settings(host=host, port=0))


def test_the_error_names_a_port_that_is_in_use() -> None:
    with (
        listening_socket(Settings(port=0)) as taken,
        pytest.raises(ConfigError, match=r": Address already in use; pass another --host or --port$"),
    ):
        listening_socket(Settings(port=taken.getsockname()[1]))
