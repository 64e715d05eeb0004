from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Cli = Callable[..., Result]


def test_keys_are_created_rotated_revoked_and_listed_without_their_secrets(cli: Cli, url: str) -> None:
    made = json.loads(cli("keys", "create", "team-a", "--usd", "2.5", "--model", "m", "--json", "--store", url).stdout)
    new = cli("keys", "rotate", "team-a", "--grace-seconds", "60", "--store", url).stdout.strip()
    cli("keys", "create", "ann", "--admin", "--expires-in-days", "30", "--store", url)
    cli("keys", "revoke", "ann", "--store", url)
    listed = cli("keys", "list", "--json", "--store", url).stdout
    assert made["key"].startswith("rlc_")
    assert new.startswith("rlc_")
    assert made["key"] != new
    assert made["key"] not in listed
    assert new not in listed
    ann, newest, oldest = json.loads(listed)
    assert (ann["name"], ann["for"], ann["state"], ann["limits"]) == ("ann", "administration", "revoked", {})
    assert newest["limits"] == oldest["limits"] == {"usd": "2.5", "per": "month", "models": ["m"]}
    assert newest["expires"] is None
    assert oldest["expires"] is not None
    assert "team-a" in cli("keys", "list", "--store", url).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create", "team a"], "can't be the name of a key"),
        (["create", "local"], "reserved"),
        (["create", "red"], "a name of the settings"),
        (["create", "twice"], "existed and was revoked"),
        (["create", "rich", "--usd", "nan"], "'nan' is not an amount of US dollars, such as 0.05"),
        (["create", "rich", "--usd", "1e300"], "--usd: write a number less than or equal to 1000000000"),
        (["create", "fast", "--requests-per-minute", "9" * 30], "--requests-per-minute: write a number"),
        (["create", "eve", "--admin", "--usd", "5"], "--admin: can't be combined with usd: an administrator's key"),
        (["rotate", "nobody"], "no valid key 'nobody'"),
        (["rotate", "valid", "--grace-seconds", "1e300"], "0 to 7,776,000 s, not 1e+300"),
        (["revoke", "nobody"], "no valid key 'nobody'"),
    ],
)
def test_errors_say_what_is_wrong(cli: Cli, url: str, tmp_path: Path, arguments: list[str], message: str) -> None:
    settings = tmp_path / "server.toml"
    settings.write_text(f'[keys.red]\nsha256 = "{"0" * 64}"\n[store]\nurl = "{url}"\n')
    cli("keys", "create", "twice", "--config", str(settings))
    result = cli("keys", *arguments, "--config", str(settings))
    assert result.exit_code == 2
    assert message in result.stderr


def test_no_key_is_created_for_a_model_that_the_settings_do_not_have(cli: Cli, url: str, tmp_path: Path) -> None:
    settings = tmp_path / "server.toml"
    house = 'model = "openai:of-the-house"\noptions = { base_url = "http://127.0.0.1:9/v1" }'
    settings.write_text(f'[workers.house]\n{house}\n[store]\nurl = "{url}"\n')
    refused = cli("keys", "create", "team-a", "--model", "conductor-min", "--config", str(settings))
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--model: there is no model 'conductor-min'; write one of conductor-mini, conductor-ultra" in refused.stderr
    assert cli("keys", "create", "team-a", "--model", "conductor-mini", "--config", str(settings)).exit_code == 0


@pytest.mark.parametrize(("limit", "warns"), [("--usd", True), ("--tokens", False)])
def test_a_budget_that_refuses_calls_without_a_price_is_created_with_a_warning(
    cli: Cli, url: str, tmp_path: Path, limit: str, warns: bool
) -> None:
    settings = tmp_path / "server.toml"
    house = 'model = "openai:of-the-house"\noptions = { base_url = "http://127.0.0.1:9/v1" }'
    settings.write_text(f'[workers.house]\n{house}\n[store]\nurl = "{url}"\n')
    result = cli("keys", "create", "team-a", limit, "5", "--config", str(settings))
    assert result.stdout.startswith("rlc_")
    assert ("team-a refuses the calls of house (openai:of-the-house)" in result.stderr) is warns


def test_a_key_can_be_created_where_the_pool_of_the_server_can_not_be_built(cli: Cli, url: str, tmp_path: Path) -> None:
    settings = tmp_path / "server.toml"
    settings.write_text(f'[workers.a]\nmodel = "openai:a"\napi_key_env = "ABSENT"\n[store]\nurl = "{url}"\n')
    assert cli("keys", "create", "team-a", "--usd", "5", "--config", str(settings)).exit_code == 0
