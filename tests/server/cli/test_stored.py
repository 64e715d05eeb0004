"""`runs` and `show`: print the runs in a server's store."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from typer.testing import Result

from core.runs import down
from rl_conductor.calls.budget import Amount
from rl_conductor.trace.events import Event, StepFinished, WorkflowPlanned
from rl_conductor.trace.feedback import Feedback
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Usage
from rl_conductor_server.store import Store
from server.cli.stored_runs import keep, new_run, ran

Cli = Callable[..., Result]


@pytest.fixture
def kept(url: str) -> str:
    """A store with three runs: one that is done, one that failed, one under way."""
    events: list[Event] = []
    done = ran("run-1", on_event=events.append)

    async def write(store: Store) -> None:
        store.begin_run(new_run("run-1", created=1_790_000_000.0))
        store.finish_run("run-1", done, "done", charged=Amount())
        store.begin_run(new_run("run-2", key="blue", session="s-1", labels={"user": "ann", "team": "red"}))
        store.finish_run(
            "run-2",
            done.model_copy(update={"error": "out of \x1b[31morder", "completion": None}),
            "failed",
            charged=Amount(),
        )
        store.begin_run(new_run("run-3", model="house", question="what is \x1b[2Junder way?"))
        for event in events:
            if isinstance(event, WorkflowPlanned) or (isinstance(event, StepFinished) and event.result.index == 0):
                store.save_progress("run-3", event, Usage(calls=2, output_tokens=9), Amount())

    keep(url, write)
    return url


def read_lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def test_runs_are_listed_newest_first(cli: Cli, kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    output = cli("runs", "--store", kept).stdout.splitlines()

    assert output[0].split() == ["run", "started", "time", "tokens", "cost", "model", "key", "question"]
    assert [line.split()[0] for line in output[1:]] == ["run-3", "run-2", "run-1"]
    assert [line.split()[3] for line in output[1:]] == ["…", "✗", "✓"]
    assert "\x1b" not in "".join(output)


def test_a_narrow_terminal_leaves_out_model_and_key(cli: Cli, kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    header, first, *_ = cli("runs", "--store", kept).stdout.splitlines()

    assert header.split() == ["run", "started", "time", "tokens", "cost", "question"]
    assert first.endswith("what is under way?")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--status", "failed"), ["run-2"]),
        (("--key", "red"), ["run-3", "run-1"]),
        (("--model", "house"), ["run-3"]),
        (("--worker", "b"), ["run-2", "run-1"]),
        (("--text", "WHO IS RUN-1"), ["run-1"]),
        (("-n", "1"), ["run-3"]),
        (("--before", "2026-11-01"), ["run-1"]),
        (("--since", "2026-11-01T00:00:00", "--key", "blue"), ["run-2"]),
        (("--key", "nobody"), []),
        (("--user", "ann"), ["run-2"]),
        (("--metadata", "team=red"), ["run-2"]),
        (("--session", "s-1"), ["run-2"]),
        (("--session", "run-1"), ["run-1"]),
    ],
)
def test_options_filter_the_runs(cli: Cli, kept: str, options: tuple[str, ...], expected: list[str]) -> None:
    result = cli("runs", "--store", kept, *options, "--json")

    assert [row["id"] for row in json.loads(result.stdout)] == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--text", "x" * 60_000), "--text: write at most 1000 characters"),
        (("--since", "2026-99"), "'2026-99' is no date, such as"),
        (("--before", "0001-01-01"), "'0001-01-01' is no date, such as"),
        (("-n", "9" * 20), "less than or equal to 1000000"),
        (("--export", "runs.jsonl", "--json"), "--json and --export don't go together"),
        (("export", "runs.jsonl"), "Write 'rl-conductor runs --export FILE'"),
        (("list",), "No such command 'list'. Write 'rl-conductor runs'"),
        (("show", "run-1"), "Write 'rl-conductor show RUN'"),
        (("exports",), "No such command 'exports'"),
    ],
)
def test_options_beyond_what_a_store_accepts_are_explained(
    cli: Cli, kept: str, options: tuple[str, ...], message: str
) -> None:
    result = cli("runs", "--store", kept, *options)
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


def test_finished_runs_are_exported_as_traces(cli: Cli, kept: str, tmp_path: Path) -> None:
    result = cli("runs", "--export", str(tmp_path / "runs.jsonl"), "--store", kept)

    assert [Trace.model_validate_json(line).id for line in read_lines(tmp_path / "runs.jsonl")] == ["run-1", "run-1"]
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "exported 2 traces\n")


@pytest.mark.parametrize(("limit", "has_more"), [("2", True), ("3", False)])
def test_an_export_says_if_there_are_more_runs(
    cli: Cli, kept: str, tmp_path: Path, limit: str, *, has_more: bool
) -> None:
    result = cli("runs", "--store", kept, "--export", str(tmp_path / "runs.jsonl"), "--limit", limit)
    assert ("there are older runs than the 2 newest; raise --limit" in result.stderr) is has_more


def test_an_export_carries_feedback_and_is_otherwise_unchanged(cli: Cli, kept: str, tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    cli("runs", "--export", str(file), "--store", kept)
    before = read_lines(file)
    rating = Feedback(author="red", score=1, comment="Good.", updated=datetime(2026, 11, 1, tzinfo=UTC))

    async def rate(store: Store) -> None:
        await store.feedback.put("run-1", rating)

    keep(kept, rate)
    cli("runs", "--export", str(file), "--store", kept)
    after = [json.loads(line) for line in read_lines(file)]
    assert after[1].pop("feedback") == [rating.model_dump(mode="json")]
    assert after == [json.loads(line) for line in before]
    positive = cli("runs", "--feedback", "positive", "--export", str(file), "--store", kept)
    assert "exported 1 trace" in positive.stderr
    assert [row["id"] for row in json.loads(cli("runs", "--store", kept, "--feedback", "none", "--json").stdout)] == [
        "run-3",
        "run-2",
    ]


@pytest.mark.parametrize(("key", "expected"), [("red", "exported 1 trace\n"), ("nobody", "exported 0 traces\n")])
def test_an_export_takes_the_filters_of_the_list(cli: Cli, kept: str, tmp_path: Path, key: str, expected: str) -> None:
    file = str(tmp_path / "runs.jsonl")
    before, after = (("--key", key), ("--export", file)), (("--export", file), ("--key", key))
    for first, second in (before, after):
        assert cli("runs", "--store", kept, *first, *second).stderr == expected


def test_an_empty_list_is_reported_on_stderr(cli: Cli, kept: str) -> None:
    result = cli("runs", "--store", kept, "--key", "nobody")

    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no matching runs\n")


def test_show_prints_a_run_like_trace_show_prints_its_file(cli: Cli, kept: str, tmp_path: Path) -> None:
    trace_json = cli("show", "run-1", "--store", kept, "--json").stdout
    (tmp_path / "run.json").write_text(trace_json)

    output = cli("show", "run-1", "--store", kept, "-s", "2").stdout

    assert "run       run-1" in output
    assert "── step 2, b, call 1 to scripted:b: ok" in output
    assert output == cli("trace", "show", str(tmp_path / "run.json"), "-s", "2").stdout


def test_a_running_run_is_shown_with_its_finished_steps(cli: Cli, kept: str) -> None:
    output = cli("show", "run-3", "--store", kept).stdout

    assert "status   running" in output
    assert "╭─ 1 ✓ a" in output
    assert "╰▶ 2 ○ b" in output
    assert "9 tokens" in output
    assert output.endswith("no trace: it has not ended yet\n")


def test_a_run_without_stored_content_says_so(cli: Cli, url: str) -> None:
    trace = ran("run-1")

    async def write(store: Store) -> None:
        store.begin_run(new_run("run-1"))
        store.finish_run("run-1", trace, "done", charged=Amount(), store_content=False)

    keep(url, write)
    assert "its content was not to be stored" in cli("show", "run-1", "--store", url).stdout
    asked_for = cli("show", "run-1", "--store", url, "--json")
    assert (asked_for.exit_code, asked_for.stdout) == (2, "")


def test_a_failed_run_is_shown_with_its_errors(cli: Cli, url: str) -> None:
    trace = ran("run-1", b=down)

    async def write(store: Store) -> None:
        store.begin_run(new_run("run-1"))
        store.finish_run("run-1", trace, "failed", charged=Amount())

    keep(url, write)
    assert "step 2: a replaced b" in cli("show", "run-1", "--store", url).stdout


@pytest.mark.parametrize("command", [("runs",), ("show", "run-1")])
def test_reading_does_not_create_a_store(cli: Cli, tmp_path: Path, command: tuple[str, ...]) -> None:
    missing = tmp_path / "missing.db"

    result = cli(*command, "--store", f"sqlite:///{missing}")

    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no store at" in result.stderr
    assert not missing.exists()


@pytest.mark.parametrize("command", [("runs",), ("keys", "list"), ("audit", "--verify")])
def test_a_database_of_another_program_is_left_as_it_is(cli: Cli, tmp_path: Path, command: tuple[str, ...]) -> None:
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE mine (id INTEGER)")
    before = other.read_bytes()

    result = cli(*command, "--store", f"sqlite:///{other}")

    assert (result.exit_code, result.stdout) == (2, "")
    assert f"there is no store at sqlite:///{other}; name the server's store with --store" in result.stderr
    assert other.read_bytes() == before


def test_reading_creates_no_tables_in_postgres(cli: Cli, postgres: str) -> None:
    result = cli("runs", "--store", postgres)

    assert (result.exit_code, "there is no store at" in result.stderr) == (2, True)
    with psycopg.connect(postgres) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


def test_an_unknown_run_is_an_error(cli: Cli, kept: str) -> None:
    result = cli("show", "run-9", "--store", kept)

    assert (result.exit_code, result.stdout) == (2, "")
    assert "no run 'run-9' in this store" in result.stderr


def test_the_store_can_be_named_by_the_settings_file(cli: Cli, kept: str, tmp_path: Path) -> None:
    settings = tmp_path / "server.toml"
    settings.write_text(f'[store]\nurl = "{kept}"\n')

    assert cli("runs", "--config", str(settings), "--json").stdout == cli("runs", "--store", kept, "--json").stdout
