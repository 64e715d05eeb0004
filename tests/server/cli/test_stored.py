"""`runs` and `show`: what a server has run, read from its store."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from typer.testing import Result

from core.runs import down, plan, pool_of
from rl_conductor import Conductor, RunError, ScriptedModel
from rl_conductor.calls.budget import Amount
from rl_conductor.trace.events import Event, Listener, StepFinished, WorkflowPlanned
from rl_conductor.trace.trace import Trace
from rl_conductor.types import Usage
from rl_conductor_server.store import NewRun, Store

Cli = Callable[..., Result]
TWO = plan((0, "Draft it.", []), (1, "Say it.", ["all"]))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'kept.db'}"


def new_run(run: str, **more: object) -> NewRun:
    known = {"id": run, "key": "red", "digest": "d", "api": "chat", "model": "conductor-mini", "created": time.time()}
    return NewRun.model_validate(known | {"question": f"Who is {run}?"} | more)


def keep(url: str, work: Callable[[Store], Awaitable[None]]) -> None:
    """Have `work` write into the store."""

    async def kept() -> None:
        store = await Store.open(url)
        await work(store)
        await store.aclose()

    asyncio.run(kept())


def ran(run: str, b: object = "from b", on_event: Listener | None = None) -> Trace:
    """A run of two steps."""
    made = Conductor(ScriptedModel(TWO), pool_of(a="from a", b=b))
    try:
        return asyncio.run(made.run("Say something.", run_id=run, on_event=on_event))
    except RunError as error:
        return error.trace


@pytest.fixture
def kept(url: str) -> str:
    """A store with three runs: one that is done, one that failed, one under way."""
    events: list[Event] = []
    done = ran("run-1", on_event=events.append)

    async def write(store: Store) -> None:
        store.begin(new_run("run-1", created=1_790_000_000.0))
        store.finish("run-1", done, "done", charged=Amount())
        store.begin(new_run("run-2", key="blue"))
        store.finish(
            "run-2",
            done.model_copy(update={"error": "out of \x1b[31morder", "completion": None}),
            "failed",
            charged=Amount(),
        )
        store.begin(new_run("run-3", model="house", question="what is \x1b[2Junder way?"))
        for event in events:
            if isinstance(event, WorkflowPlanned) or (isinstance(event, StepFinished) and event.result.index == 0):
                store.record("run-3", event, Usage(calls=2, output_tokens=9), Amount())

    keep(url, write)
    return url


def test_runs_are_listed_newest_first(cli: Cli, kept: str) -> None:
    told = cli("runs", "--store", kept).stdout.splitlines()

    assert told[0].split() == ["run", "begun", "took", "tokens", "cost", "asked", "key", "question"]
    assert [line.split()[0] for line in told[1:]] == ["run-3", "run-2", "run-1"]
    assert [line.split()[3] for line in told[1:]] == ["…", "✗", "✓"]
    assert "\x1b" not in "".join(told)


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
    ],
)
def test_runs_are_chosen_by_what_is_asked(cli: Cli, kept: str, options: tuple[str, ...], expected: list[str]) -> None:
    result = cli("runs", "--store", kept, *options, "--json")

    assert [row["id"] for row in json.loads(result.stdout)] == expected


def test_finished_runs_are_exported_as_traces(cli: Cli, kept: str) -> None:
    result = cli("runs", "export", "--store", kept)

    assert [Trace.model_validate_json(line).id for line in result.stdout.splitlines()] == ["run-1", "run-1"]
    assert "exported 2 traces" in result.stderr


def test_an_export_takes_the_filters_of_the_list(cli: Cli, kept: str) -> None:
    assert "exported 0 traces" in cli("runs", "export", "--store", kept, "--key", "nobody").stderr


def test_no_such_run_is_said_on_stderr(cli: Cli, kept: str) -> None:
    result = cli("runs", "--store", kept, "--key", "nobody")

    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no such run\n")


def test_a_run_is_told_as_from_its_file(cli: Cli, kept: str, tmp_path: Path) -> None:
    whole = cli("show", "run-1", "--store", kept, "--json").stdout
    (tmp_path / "run.json").write_text(whole)

    told = cli("show", "run-1", "--store", kept, "-s", "2").stdout

    assert "run       run-1" in told
    assert "── step 2, b, call 1 to scripted:b: ok" in told
    assert told == cli("trace", "show", str(tmp_path / "run.json"), "-s", "2").stdout


def test_a_run_under_way_is_told_as_far_as_it_is(cli: Cli, kept: str) -> None:
    told = cli("show", "run-3", "--store", kept).stdout

    assert "is      running" in told
    assert "╭─ 1 ✓ a" in told
    assert "╰▶ 2 ○ b" in told
    assert "9 tokens" in told
    assert told.endswith("there is no trace: it is not over yet\n")


def test_a_run_whose_words_were_not_to_be_kept_says_so(cli: Cli, url: str) -> None:
    trace = ran("run-1")

    async def write(store: Store) -> None:
        store.begin(new_run("run-1"))
        store.finish("run-1", trace, "done", charged=Amount(), keep=False)

    keep(url, write)
    assert "nothing that was said in it was to be kept" in cli("show", "run-1", "--store", url).stdout
    asked_for = cli("show", "run-1", "--store", url, "--json")
    assert (asked_for.exit_code, asked_for.stdout) == (2, "")


def test_a_failed_run_is_told_with_its_error(cli: Cli, url: str) -> None:
    trace = ran("run-1", b=down)

    async def write(store: Store) -> None:
        store.begin(new_run("run-1"))
        store.finish("run-1", trace, "failed", charged=Amount())

    keep(url, write)
    assert "step 2: a took the place of b" in cli("show", "run-1", "--store", url).stdout


@pytest.mark.parametrize("command", [("runs",), ("show", "run-1")])
def test_looking_makes_no_store(cli: Cli, tmp_path: Path, command: tuple[str, ...]) -> None:
    missing = tmp_path / "missing.db"

    result = cli(*command, "--store", f"sqlite:///{missing}")

    assert (result.exit_code, result.stdout) == (2, "")
    assert "no runs are kept in" in result.stderr
    assert not missing.exists()


def test_an_unknown_run_is_a_mistake(cli: Cli, kept: str) -> None:
    result = cli("show", "run-9", "--store", kept)

    assert (result.exit_code, result.stdout) == (2, "")
    assert "no run 'run-9' is kept there" in result.stderr


def test_the_settings_of_a_server_say_where_its_runs_are(cli: Cli, kept: str, tmp_path: Path) -> None:
    settings = tmp_path / "conductor.toml"
    settings.write_text(f'[store]\nurl = "{kept}"\n')

    assert cli("runs", "--config", str(settings), "--json").stdout == cli("runs", "--store", kept, "--json").stdout
