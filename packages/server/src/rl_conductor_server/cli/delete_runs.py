"""`runs delete`: erases single runs of a server, or those of one user."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

from rl_conductor._internal.formatting import counted
from rl_conductor.cli import exit_codes
from rl_conductor.cli.output import console
from rl_conductor.errors import ConfigError
from rl_conductor_server.cli import store_options
from rl_conductor_server.store import Store
from rl_conductor_server.store.erasure.erasure import ErasedRuns

COMMAND_LINE = "@command-line"
"""The actor of an erasure, in the audit record."""

RunsArgument = Annotated[list[str] | None, typer.Argument(metavar="RUN", help="Ids of runs.", show_default=False)]
UserOption = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="All runs of this end user, as 'runs --user' lists them.")
]
KeyOption = Annotated[str | None, typer.Option("--key", metavar="NAME", help="With --user: only runs of this API key.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")]


def delete(
    runs: RunsArgument = None,
    *,
    user: UserOption = None,
    key: KeyOption = None,
    yes: YesOption = False,
    store: store_options.StoreOption = None,
    config: store_options.ConfigOption = None,
) -> None:
    """Delete what runs said and who asked, which is otherwise deleted after 'retain_days'.

    Usage, cost, times and audit records stay. A run in progress is not deleted. With --user, the conversations of the
    user are deleted as well.

    \b
    Examples:
      rl-conductor runs delete run-3f2a9c0d1b7e4a55
      rl-conductor runs delete --user ann@example.com --config server.toml
    """
    if bool(runs) == bool(user):
        raise ConfigError("give the ids of runs, or the name of a user with --user")
    if key is not None and user is None:
        raise ConfigError("--key goes with --user; ids of runs need no key")
    ids = list(dict.fromkeys(runs or ()))
    count = partial(_check_ids, ids) if user is None else partial(_count_runs, user, key)
    description = store_options.with_store(store, config, count)
    if not description:
        console.note(console.stderr(), "no matching runs")
        return
    if not yes:
        _confirm(description)
    erase = partial(_delete_ids, ids) if user is None else partial(_delete_of_user, user, key)
    result = store_options.with_store(store, config, erase)
    console.note(console.stderr(), f"deleted {counted(result.erased, 'run')}")
    if result.in_progress:
        advice = "repeat the command when they have ended, and so have their replays and batches"
        console.fail(f"not deleted, because they are in progress: {counted(result.in_progress, 'run')}; {advice}")
        raise typer.Exit(exit_codes.FAILURE)


async def _check_ids(ids: Sequence[str], store: Store) -> str:
    """Describes the runs. Raises `ConfigError` if there is no such run."""
    for run in ids:
        await store_options.get_run(store, run)
    return counted(len(ids), "run")


async def _count_runs(user: str, key: str | None, store: Store) -> str:
    """Describes the runs of a user, those of each API key: another key may have another user of the same name."""
    counts = await store.erasure.count_runs(user, key=key)
    keys = ", ".join(f"{number:,} of the key {name}" for name, number in counts.items())
    if not counts:
        return ""
    return f"{counted(sum(counts.values()), 'run')} of the user {user!r} ({keys})"


def _confirm(description: str) -> None:
    question = f"Delete {console.one_line(description)}, and the answers that repeat them? This can't be undone."
    typer.confirm(question, abort=True, err=True)


async def _delete_ids(ids: Sequence[str], store: Store) -> ErasedRuns:
    outcomes = [await store.erasure.erase_run(run, by=COMMAND_LINE) for run in ids]
    await store.erasure.merge_index()
    return ErasedRuns(outcomes.count("erased"), outcomes.count("in progress"))


async def _delete_of_user(user: str, key: str | None, store: Store) -> ErasedRuns:
    result = await store.erasure.erase_user(user, by=COMMAND_LINE, key=key)
    await store.erasure.merge_index()
    return result
