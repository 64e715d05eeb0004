"""A service of models that plan and work, on loopback, and a command line that uses them."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from core.models.wire.base import Counts, Said, Seen
from core.models.wire.openai import OpenAIWire
from rl_conductor.cli.main import app


def plan(*steps: tuple[str, int, list[str]]) -> str:
    """A plan as vendors' models write it: subtask, worker and access of each step."""
    rows = [{"subtask": subtask, "worker": worker, "access": access} for subtask, worker, access in steps]
    return json.dumps({"reasoning": "Two work, one compares.", "steps": rows})


SAYS = {
    "plan-three": plan(("Solve it.", 0, []), ("Solve it otherwise.", 1, []), ("Compare the two.", 0, ["all"])),
    "plan-one": plan(("Solve it.", 0, [])),
    "plan-rude": plan(("\x1b[31mSolve\x1b[0m it.", 0, [])),
    "plan-lists": 'model_id: [0]\nsubtasks = ["Solve it."]\naccess_list = [[]]',
    "no-plan": "I would rather not.",
    "solver": "It is [bold]42[/bold].",
    "second": "It is 43.",
    "rude": "one\x1b[2J\x1b]0;title\x07 two\x9b31m \u202ethree\x08\rfour",
}
"""The replies of the models of these names; all others behave as `core.models.wire.base` tells."""
COUNTS = Counts(input=100, output=10)
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENROUTER_API_KEY")
VARIABLES = (*KEYS, "OPENAI_BASE_URL", "RL_CONDUCTOR_POOL", "RL_CONDUCTOR_WEIGHTS", "FORCE_COLOR", "NO_COLOR")


class Service(OpenAIWire):
    """OpenAI's protocol, with models that write plans."""

    def whole(self, seen: Seen, said: Said) -> Any:
        """The reply in one piece."""
        return super().whole(seen, _said(seen, said))

    def events(self, seen: Seen, said: Said) -> list[str]:
        """The reply in words."""
        return super().events(seen, _said(seen, said))

    def asked(self) -> list[str]:
        """The models that were asked, in order."""
        return [wire.body["model"] for wire in self.requests]


def _said(seen: Seen, said: Said) -> Said:
    if seen.scenario not in SAYS:
        return said
    return replace(said, pieces=tuple(re.findall(r"\s*\S+", SAYS[seen.scenario])), counts=COUNTS)


@pytest.fixture(scope="session")
def running() -> Iterator[Service]:
    """The service, started once."""
    with Service.running() as service:
        yield service


@pytest.fixture
def service(running: Service) -> Service:
    """The service, with no request so far."""
    running.requests.clear()
    return running


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key, no server, no colour, no weights, and a terminal of 100 columns."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("RL_CONDUCTOR_CACHE", str(tmp_path / "cache"))


PRICE = "price = { input = 2, output = 8 }"


@pytest.fixture
def pool(service: Service, tmp_path: Path) -> Callable[..., str]:
    """Writes a pool file: `pool(solver, second, planner=..., price=...)`, and returns its path."""

    def written(*models: str, planner: str = "plan-three", price: str = PRICE, options: str = "") -> str:
        at = f'options = {{ base_url = "{service.url}/v1"{options} }}'
        names = models or ("solver", "second")
        tables = [f'[workers.{name}]\nmodel = "openai:{name}"\n{at}\n{price}' for name in names]
        path = tmp_path / "pool.toml"
        path.write_text("\n".join([f'[planner]\nmodel = "openai:{planner}"\n{at}\n{price}', *tables]))
        return str(path)

    return written


@pytest.fixture
def cli() -> Callable[..., Result]:
    """The command line in this process: `cli("ask", "..."), input="..."`."""

    def run(*arguments: str, text: str | bytes | None = None) -> Result:
        with _restoring_log():
            result = CliRunner().invoke(app, list(arguments), input=text)
        unexpected = result.exception is not None and not isinstance(result.exception, SystemExit)
        assert not unexpected, repr(result.exception)
        return result

    return run


@contextmanager
def _restoring_log() -> Iterator[None]:
    """Undoes what `serve` configures: its handler writes to the output of the command, which is closed afterwards."""
    loggers = [logging.getLogger(name) for name in (None, "rl_conductor", "rl_conductor_server")]
    before = [(logger.handlers[:], logger.level) for logger in loggers]
    try:
        yield
    finally:
        for logger, (handlers, level) in zip(loggers, before, strict=True):
            logger.handlers[:] = handlers
            logger.setLevel(level)


@pytest.fixture
def command() -> str:
    """The installed program."""
    found = shutil.which("rl-conductor", path=os.path.dirname(sys.executable))  # noqa: PTH120
    assert found is not None
    return found
