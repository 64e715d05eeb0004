"""`audit`: prints, verifies and exports the audit record."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import Result

from rl_conductor.calls.budget import Amount
from rl_conductor.trace.feedback import Feedback
from rl_conductor_server.store import Store
from rl_conductor_server.store.audit import BEGINNING
from server.cli.stored_runs import keep, new_run, ran

Cli = Callable[..., Result]


@pytest.fixture
def kept(tmp_path: Path) -> str:
    """A store with three finished runs and a running one."""
    url = f"sqlite:///{tmp_path / 'kept.db'}"
    traces = [ran(f"run-{number}") for number in range(3)]

    async def write(store: Store) -> None:
        for trace in traces:
            store.begin_run(new_run(trace.id))
            store.finish_run(trace.id, trace, "done", charged=Amount.of(trace.usage))
        store.begin_run(new_run("run-9"))

    keep(url, write)
    return url


def change(url: str, statement: str) -> None:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_a_record_shows_the_steps_of_a_run_but_no_content(cli: Cli, kept: str) -> None:
    result = cli("audit", "run-1", "--store", kept)

    assert result.exit_code == 0
    assert "record    2" in result.stdout
    assert "step 2: b, reads 1: ok" in result.stdout
    assert "ok: scripted:b, prompt " in result.stdout
    assert "from b" not in result.stdout
    assert result.stderr == ""


def test_verifying_a_run_checks_the_chain_and_its_trace(cli: Cli, kept: str) -> None:
    result = cli("audit", "run-1", "--verify", "--store", kept)

    assert result.exit_code == 0
    assert "✓ 3 records, none of them changed; the head is " in result.stderr
    assert "✓ the run's trace matches its record" in result.stderr


def test_feedback_is_in_the_record_without_its_comment(cli: Cli, kept: str) -> None:
    rating = Feedback(author="red", score=0.5, comment="Too short.", updated=datetime(2026, 11, 1, tzinfo=UTC))

    async def rate(store: Store) -> None:
        await store.feedback.put("run-1", rating)

    keep(kept, rate)
    result = cli("audit", "run-1", "--verify", "--store", kept)
    assert result.exit_code == 0
    assert "✓ 4 records, none of them changed; the head is " in result.stderr
    assert "✓ the run's trace matches its record" in result.stderr
    assert "feedback  user_score = 0.5" in result.stdout
    assert "Too short." not in result.stdout


def test_json_prints_the_records_as_they_are_stored(cli: Cli, kept: str) -> None:
    (line,) = cli("audit", "run-1", "--json", "--store", kept).stdout.splitlines()

    assert json.loads(line)["sequence"] == 2


def test_the_record_of_an_expired_run_says_that_its_server_is_gone(cli: Cli, kept: str) -> None:
    async def expire() -> None:
        store = await Store.open(kept, lease=-1.0)
        assert await store.end_expired_runs([]) == ["run-9"]
        await store.aclose()

    asyncio.run(expire())

    result = cli("audit", "run-9", "--verify", "--store", kept)
    assert result.exit_code == 0
    assert "request   unknown" in result.stdout
    assert "trace     none: the server that ran it is gone" in result.stdout
    assert "✓ the run has no trace: the server that ran it is gone" in result.stderr
    assert "no trace: the server that ran it is gone" in cli("show", "run-9", "--store", kept).output


def test_a_changed_trace_is_detected(cli: Cli, kept: str) -> None:
    change(kept, "UPDATE runs SET trace = replace(trace, 'from b', 'from c') WHERE id = 'run-1'")

    result = cli("audit", "run-1", "--verify", "--store", kept)

    assert result.exit_code == 1
    assert result.stderr.endswith("error: the run's trace was changed: it does not match its record\n")
    assert cli("audit", "run-2", "--verify", "--store", kept).exit_code == 0


def test_a_record_is_valid_without_its_deleted_trace(cli: Cli, kept: str) -> None:
    change(kept, "DELETE FROM runs")

    result = cli("audit", "run-1", "--verify", "--store", kept)

    assert result.exit_code == 0
    assert "the run's trace is no longer stored" in result.stderr


def test_a_changed_record_is_detected(cli: Cli, kept: str) -> None:
    change(kept, "UPDATE audit_records SET line = replace(line, 'red', 'blu') WHERE sequence = 3")

    result = cli("audit", "--verify", "--store", kept)

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: the audit record was changed: record 3 was changed\n"


def test_an_export_is_verified_without_the_store(cli: Cli, kept: str, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"

    exported = cli("audit", "--export", str(file), "--store", kept)
    verified = cli("audit", "--verify-file", str(file))

    assert (exported.exit_code, verified.exit_code) == (0, 0)
    assert exported.stderr == verified.stderr
    *records, seal = file.read_text().splitlines()
    assert [json.loads(line)["run"] for line in records] == ["run-0", "run-1", "run-2"]
    assert json.loads(seal)["head"] in verified.stderr


@pytest.mark.parametrize("changed", [b"", b"{}\n", b"\xff\n"])
def test_an_invalid_export_is_rejected(cli: Cli, tmp_path: Path, changed: bytes) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_bytes(changed)

    result = cli("audit", "--verify-file", str(file))

    assert result.exit_code == 1
    assert result.stderr.startswith("error: the audit record was changed: ")


def test_an_earlier_head_must_be_in_the_record(cli: Cli, kept: str, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    cli("audit", "--export", str(file), "--store", kept)
    earlier_head = json.loads(file.read_text().splitlines()[-1])["head"]
    trace = ran("run-4")

    async def add_run(store: Store) -> None:
        store.begin_run(new_run("run-4"))
        store.finish_run("run-4", trace, "done", charged=Amount.of(trace.usage))

    keep(kept, add_run)
    assert cli("audit", "--head", earlier_head, "--store", kept).exit_code == 0
    result = cli("audit", "--verify-file", str(file), "--head", "f" * 64)
    assert result.exit_code == 1
    assert "it does not contain the head ffff" in result.stderr


def test_an_empty_record_has_a_head(cli: Cli, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'empty.db'}"

    async def nothing(_: Store) -> None:
        """Only create the store."""

    keep(url, nothing)
    assert (
        f"0 records, none of them changed; the head is {BEGINNING}" in cli("audit", "--verify", "--store", url).stderr
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to do; give a RUN, --verify"),
        (("run-9",), "no record of run 'run-9': it has not ended"),
        (("run-1", "--export", "one.jsonl"), "RUN and --export don't go together"),
        (("run-1", "--verify-file", "all.jsonl"), "--verify-file and RUN don't go together"),
        (("--export", "new.jsonl", "--verify-file", "all.jsonl"), "--verify-file and --export don't go together"),
        (("--verify-file", "all.jsonl", "--json"), "--verify-file and --json don't go together"),
        (("--verify", "--json"), "--json prints the records of one run; give a RUN"),
        (("--verify-file", "/no/such/file"), "can't read"),
        (("--export", "/no/such/folder/file"), "can't write"),
        (("--export", "/dev/full"), "can't write '/dev/full': No space left"),
    ],
)
def test_wrong_arguments_are_explained(cli: Cli, kept: str, arguments: tuple[str, ...], message: str) -> None:
    result = cli("audit", *arguments, "--store", kept)

    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
