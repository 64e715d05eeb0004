"""`ask` with a collector, without one, and without the packages that it needs."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest
from typer.testing import Result

from otlp import collector

Cli = Callable[..., Result]
Pool = Callable[..., str]

WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
from rl_conductor.cli.main import main
main()
"""


def test_ask_exports_its_run_where_the_environment_says(cli: Cli, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as collected:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collected.url)
        result = cli("ask", "--pool", pool(), "What is 6 * 7?")
    assert (result.exit_code, result.stdout) == (0, "It is [bold]42[/bold].\n")
    names = [span.name for span in collected.spans()]
    assert "invoke_workflow conductor" in names
    assert names.count("chat solver") == 2


@pytest.mark.parametrize("listens", [True, False])
def test_what_a_dead_collector_did_not_take_is_told(pool: Pool, *, listens: bool) -> None:
    """It takes the connection and says nothing, or is not there at all."""
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        if listens:
            dead.listen()
        done = subprocess.run(
            [sys.executable, "-c", "from rl_conductor.cli.main import main; main()", "ask", "--pool", pool(), "Why?"],
            env=os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://{}:{}".format(*dead.getsockname())},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0
    assert re.search(r"telemetry: \d spans and the metrics could not be sent within 2 s", done.stderr)


def test_an_exporter_that_is_not_there_is_a_mistake(cli: Cli, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "smoke-signals")
    result = cli("ask", "--pool", pool(), "What is 6 * 7?")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no exporter 'smoke-signals' for traces is installed" in result.stderr


def test_without_the_packages_the_answer_still_comes(pool: Pool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, "ask", "--pool", pool(), "What is 6 * 7?"],
        env=os.environ | {"OTEL_SERVICE_NAME": "house"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "It is [bold]42[/bold].\n")
    assert "an OTEL_* variable is set, but telemetry needs more: pip install 'rl-conductor[telemetry]'" in done.stderr
