"""Secrets among the environment variables of a program; other values stay readable in results."""

from __future__ import annotations

import random
import string

import pytest

from rl_conductor.models.variable_secrets import variable_secrets


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ENVIRONMENT", "production"),
        ("AWS_REGION", "us-east-1"),
        ("PROJECT", "my-project-123456-europe-west4"),
        ("MODEL", "gpt-4o-mini-2024-07-18"),
        ("IMAGE", "ubuntu22.04-py311-cu124"),
        ("REPORTS", "/Users/Anna/Documents/Reports2024/Final Version"),
        ("API_URL", "https://api.example.com/v1/reports?format=json"),
        ("KEY_FILE", "/etc/ssl/private/server.pem"),
        ("TOKEN_URL", "https://login.example.com/oauth2/token"),
        ("SINCE", "2024-01-15T10:30:00Z"),
        ("SINCE", "20240115T103000Z"),
        ("TENANT_ID", "123E4567-e89b-12d3-a456-426614174000"),
        ("TITLE", "InternationalizationOfEverything"),
        ("RELEASE", "MyBigProject2024Release"),
        ("PWD", "/home/me/reports"),
        ("HOSTS", "[broken, //not a URL"),
        ("MONKEY", "chimpanzee"),
        ("EMPTY", ""),
    ],
)
def test_values_that_are_not_secret_are_left_in_results(name: str, value: str) -> None:
    assert variable_secrets(name, value) == ()


@pytest.mark.parametrize(
    "name",
    [
        "GITHUB_TOKEN",
        "githubtoken",
        "OPENAI_API_KEY",
        "REPORTS_KEY",
        "REPORTS_KEY_2",
        "AWS_SECRET_ACCESS_KEY",
        "PGPASSWORD",
        "DB_PASS",
        "MYSQL_PWD",
        "SSH_PASSPHRASE",
        "GITLAB_PAT",
        "BASIC_AUTH",
        "SESSION_COOKIE",
        "SERVICE_CREDENTIALS",
    ],
)
def test_a_variable_whose_name_says_that_it_holds_a_secret_is_one_whatever_its_value(name: str) -> None:
    assert variable_secrets(name, "correct horse") == ("correct", "horse")


@pytest.mark.parametrize(
    ("value", "secret"),
    [
        ("postgres://shop:hunter22@db.example.com/shop", "hunter22"),
        ("https://reports.example.com/?api_key=plainword", "plainword"),
        ("Server=db;User Id=shop;Password=hunter22;Encrypt=true", "hunter22"),
        ("AccountName=shop;AccountKey=abcdefgh", "abcdefgh"),
        ("https://8f3a0c71d2e94b56a07f3e1c9d8b2a64@errors.example.com/7", "8f3a0c71d2e94b56a07f3e1c9d8b2a64"),
        ("https://hooks.example.com/services/T01/x7Gh29KdLq83MnBv51ZpRt60", "x7Gh29KdLq83MnBv51ZpRt60"),
        ("wJalrXUtnF3MI/K7MDENG/bPxRf1CYEX4MPLEK3Y", "wJalrXUtnF3MI/K7MDENG/bPxRf1CYEX4MPLEK3Y"),
        ("xoxb-2934857-Ab3dE5gH1jK2mN4pQ6rS8tUv", "xoxb-2934857-Ab3dE5gH1jK2mN4pQ6rS8tUv"),
    ],
)
def test_secrets_are_found_in_values_of_variables_with_other_names(value: str, secret: str) -> None:
    assert secret in variable_secrets("SHOP", value)


@pytest.mark.parametrize("alphabet", [string.hexdigits[:16], string.ascii_letters + string.digits + "-_"])
def test_most_random_keys_are_found_whatever_the_name(alphabet: str) -> None:
    draw = random.Random(7)
    keys = ["".join(draw.choices(alphabet, k=32)) for _ in range(1000)]
    assert sum(key in variable_secrets("SHOP", key) for key in keys) > 980
