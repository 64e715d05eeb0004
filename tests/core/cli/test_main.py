"""The command as a whole: help, version, reference, start-up."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import Result

from rl_conductor.cli.add_ons import install_command
from rl_conductor.cli.main import COMMANDS as COMMANDS_OF_THE_CORE
from rl_conductor.cli.main import app, installed_commands, load_command
from rl_conductor.cli.reference import reference

Cli = Callable[..., Result]

COMMANDS = ("ask", "plan", "run", "pool", "models", "trace", "doctor")
HEAVY = ("openai", "anthropic", "google.auth", "httpx", "httpx2", "xllamacpp", "transformers", "huggingface_hub")


def shown(result: Result) -> str:
    """The text of stderr, without the lines and the frame of the box around it."""
    return " ".join(result.stderr.replace("│", " ").split())


def test_version_is_that_of_the_package(cli: Cli) -> None:
    assert cli("--version").stdout == f"rl-conductor {version('rl-conductor')}\n"


def test_help_names_every_command(cli: Cli) -> None:
    result = cli("--help")

    assert result.exit_code == 0
    assert all(f"│ {name} " in result.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", ["ask", "plan", "run", "pool"])
def test_help_shows_examples(cli: Cli, name: str) -> None:
    assert f"\n   rl-conductor {name} " in cli(name, "-h").stdout


def help_texts(command: Any) -> Iterator[str]:
    """Yields the texts of a command, its options and its subcommands; typer has no public types for them."""
    yield command.help or ""
    yield from (getattr(param, "help", None) or "" for param in command.params)
    for subcommand in getattr(command, "commands", {}).values():
        yield from help_texts(subcommand)


def test_no_help_has_square_brackets_which_terminals_take_for_a_style_and_hide() -> None:
    commands = [typer.main.get_command(app), *map(load_command, installed_commands())]
    texts = [text for command in commands for text in help_texts(command)]
    assert len(texts) > 100
    assert [text for text in texts if re.search(r"\[[a-z#@/].*\]", text)] == []


@pytest.mark.parametrize("name", ["chat", "mcp", "a2a"])
def test_help_breaks_lines_only_where_the_terminal_ends(cli: Cli, name: str) -> None:
    lines = cli(name, "-h").stdout.partition("Usage: ")[2].partition("Examples:")[0].splitlines()
    for line, following in pairwise(lines):
        assert not line.strip() or not following.strip() or len(f"{line.rstrip()} {following.split()[0]}") >= len(line)


def test_a_command_that_does_not_exist_is_a_mistake(cli: Cli) -> None:
    assert cli("aks", "Hello?").exit_code == 2


def test_a_misspelled_command_gets_similar_names(cli: Cli) -> None:
    result = cli("aks", "Hello?")
    assert "Did you mean 'ask'?" in result.stderr
    assert "Did you mean" not in cli("frobnicate").stderr


def test_a_question_without_quotes_gets_the_advice_to_quote_it(cli: Cli) -> None:
    result = cli("ask", "What", "is", "rain")

    assert result.exit_code == 2
    assert "unexpected extra argument(s) (is rain). Write the question in quotes." in shown(result)


def test_a_pool_file_without_its_option_gets_the_option(cli: Cli) -> None:
    assert "Did you mean '--pool pool.toml'?" in shown(cli("pool", "pool.toml"))


def test_an_env_file_after_the_command_is_told_its_place(cli: Cli) -> None:
    result = cli("ask", "--env-file", ".env", "What is rain?")

    assert result.exit_code == 2
    assert "--env-file stands before the command: rl-conductor --env-file FILE ask" in shown(result)
    assert "stands before" not in shown(cli("pool", "--", "--env-file"))


def test_the_reference_is_what_the_command_line_says_now() -> None:
    written = Path(__file__).parents[3] / "docs" / "cli.md"

    assert written.read_text() == reference(), "run: python -m rl_conductor.cli.reference > docs/cli.md"


def test_help_imports_no_vendor(command: str) -> None:
    look = f"import sys, json, rl_conductor.cli.main; print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"

    loaded = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)

    assert json.loads(loaded.stdout) == []


def test_ctrl_c_while_modules_are_imported_prints_no_traceback() -> None:
    program = """
import signal, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == "typer":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from rl_conductor.cli.__main__ import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def installed_from(origin: str | None) -> Callable[[str], SimpleNamespace]:
    """A distribution whose `direct_url.json` is `origin`."""
    return lambda _: SimpleNamespace(read_text=lambda _: origin)


def test_a_command_whose_package_is_missing_is_listed_and_says_what_to_install(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_conductor.cli.main.installed_commands", lambda: COMMANDS_OF_THE_CORE)
    monkeypatch.setattr("rl_conductor.cli.add_ons.distribution", installed_from(None))

    assert "Not installed: pip install rl-conductor-server" in " ".join(cli("--help").stdout.split())
    result = cli("serve", "--port", "9000")

    assert result.exit_code == 2
    assert (
        result.stderr == "error: 'serve' comes with the package rl-conductor-server: pip install rl-conductor-server\n"
    )


def test_in_a_checkout_a_missing_package_is_installed_from_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "packages" / "server").mkdir(parents=True)
    (tmp_path / "packages" / "server" / "pyproject.toml").touch()
    origin = json.dumps({"url": (tmp_path / "packages" / "core").as_uri(), "dir_info": {"editable": True}})
    monkeypatch.setattr("rl_conductor.cli.add_ons.distribution", installed_from(origin))

    assert install_command("rl-conductor-server") == f"pip install -e {tmp_path / 'packages' / 'server'}"
    monkeypatch.chdir(tmp_path)
    assert install_command("rl-conductor-server") == f"pip install -e {Path('packages', 'server')}"
    assert install_command("rl-conductor-training") == "pip install rl-conductor-training"


def test_a_command_of_another_package_joins_by_its_entry_point(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    added = dict(COMMANDS_OF_THE_CORE) | {"greet": "core.cli.greeting:greet"}
    monkeypatch.setattr("rl_conductor.cli.main.installed_commands", lambda: added)

    assert cli("greet", "you").stdout == "Hello, you.\n"


def test_an_env_file_sets_what_is_not_set_yet(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XAI_API_KEY", "")  # so that it is as before when the test ends
    monkeypatch.delenv("XAI_API_KEY")
    monkeypatch.setenv("GROQ_BASE_URL", "http://127.0.0.1:1/v1")
    file = tmp_path / "keys.env"
    file.write_text("# keys\nexport XAI_API_KEY='key of mine'\nGROQ_BASE_URL=http://127.0.0.1:2/v1\n")

    assert "XAI_API_KEY" not in cli("doctor").stdout
    told = cli("--env-file", str(file), "doctor").stdout

    assert os.environ["XAI_API_KEY"] == "key of mine"
    assert "XAI_API_KEY" in told
    assert "http://127.0.0.1:1/v1" in told


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "can't read '{file}': No such file or directory"),
        (b"A=1\nKEY sk-secret-value\n", "'{file}', line 2: write NAME=VALUE"),
        (b"A=1\n\nKEY='sk-secret-value\n", "'{file}', line 3: write NAME=VALUE"),
        (b"SOMETHING\n", "'{file}', line 1: write NAME=VALUE"),
        (b"A=\xff\n", "can't read '{file}': it is not text in UTF-8"),
    ],
)
def test_an_env_file_that_can_not_be_used_is_a_mistake(
    cli: Cli, tmp_path: Path, content: bytes | None, error: str
) -> None:
    file = tmp_path / ".env"
    if content is not None:
        file.write_bytes(content)

    result = cli("--env-file", str(file), "doctor")

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {error.format(file=file)}")
    assert "sk-secret" not in result.stderr
    assert "A" not in os.environ
