"""`runs delete`: erases runs of a store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from rl_conductor.calls.budget import Amount
from rl_conductor_server.store import RunRow, Store
from server.cli.stored_runs import keep, new_run, ran

Cli = Callable[..., Result]


@pytest.fixture
def kept(url: str) -> str:
    """A store with runs of two API keys, each of which has a user 42, and a run in progress."""
    traces = [ran(f"run-{number}") for number in range(3)]

    async def write(store: Store) -> None:
        for trace, key in zip(traces, ("red", "red", "blue"), strict=True):
            store.begin_run(new_run(trace.id, key=key, labels={"user": "42"}))
            store.finish_run(trace.id, trace, "done", charged=Amount.of(trace.usage))
        store.begin_run(new_run("run-9", labels={"user": "ann"}))

    keep(url, write)
    return url


def questions(url: str) -> dict[str, str]:
    async def read() -> dict[str, str]:
        store = await Store.open(url)
        rows: list[RunRow] = list(await store.list_runs())
        await store.aclose()
        return {row.id: row.question for row in rows if row.question}

    return asyncio.run(read())


def test_runs_are_deleted_by_their_ids_and_the_record_says_so(cli: Cli, kept: str) -> None:
    result = cli("runs", "delete", "run-0", "run-1", "--yes", "--store", kept)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "deleted 2 runs" in result.stderr
    assert set(questions(kept)) == {"run-2", "run-9"}
    audit = cli("audit", "run-0", "--verify", "--store", kept)
    assert audit.exit_code == 0
    assert "erased by  @command-line" in audit.stdout
    assert "✓ the run's trace is no longer stored, only its record" in audit.stderr


def test_deleting_asks_first_and_names_the_keys_of_a_user(cli: Cli, kept: str) -> None:
    refused = cli("runs", "delete", "--user", "42", "--store", kept, text="n\n")
    assert refused.exit_code == 1
    assert "Delete 3 runs of the user '42' (1 of the key blue, 2 of the key red)" in refused.stderr
    assert len(questions(kept)) == 4
    agreed = cli("runs", "delete", "--user", "42", "--key", "red", "--store", kept, text="y\n")
    assert "deleted 2 runs" in agreed.stderr
    assert set(questions(kept)) == {"run-2", "run-9"}


def test_a_run_in_progress_is_named_and_kept(cli: Cli, kept: str) -> None:
    for arguments in (("run-0", "run-9"), ("--user", "ann")):
        result = cli("runs", "delete", *arguments, "--yes", "--store", kept)
        assert result.exit_code == 1
        assert "not deleted, because they are in progress: 1 run" in result.stderr
    assert set(questions(kept)) == {"run-1", "run-2", "run-9"}


def test_a_user_without_runs_is_reported(cli: Cli, kept: str) -> None:
    result = cli("runs", "delete", "--user", "nobody", "--store", kept)
    assert (result.exit_code, result.stderr) == (0, "no matching runs\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("delete",), "give the ids of runs, or the name of a user"),
        (("delete", "run-0", "--user", "42"), "give the ids of runs, or the name of a user"),
        (("delete", "run-0", "--key", "red"), "--key goes with --user"),
        (("delete", "run-0", "run-unknown", "--yes"), "no run 'run-unknown'"),
        (("--user", "42", "delete", "run-0", "--yes"), "write options after 'rl-conductor runs delete'"),
    ],
)
def test_wrong_arguments_delete_nothing(
    cli: Cli, kept: str, arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    config = tmp_path / "server.toml"
    config.write_text(f'[store]\nurl = "{kept}"\n')
    result = cli("runs", *arguments, *(() if arguments[0] == "--user" else ("--config", str(config))))
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(questions(kept)) == 4
