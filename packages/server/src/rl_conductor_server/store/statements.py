"""SQL statements that every run needs, built once per process: building one costs more than executing it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from sqlalchemy import Executable, bindparam, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from rl_conductor_server.store.tables import CHARGE_COLUMNS, USAGE_COLUMNS, forgotten, runs, shares, steps


@dataclass(frozen=True)
class Statements:
    """Statements in the dialect of one database; parameters have the names of the columns unless noted."""

    insert_run: Executable
    """Does nothing if the run exists."""
    claim_run: Executable
    """Inserts a run and returns its id, or returns nothing if its idempotency key is in use."""
    select_owned_runs: Executable
    """Selects those of `run_ids` that are owned by `by_owner`."""
    update_run: Executable
    """Updates run `by_id` if it is owned by `by_owner`."""
    renew_leases: Executable
    """Sets the heartbeat of those of `active_runs` that are owned by `by_owner` to `now`."""
    upsert_step: Executable
    """Inserts or replaces a plan or a finished step."""
    delete_steps: Executable
    """Deletes the steps of run `of_run`."""
    upsert_worker_usage: Executable
    """Inserts or replaces the usage of one worker: a resumed run reports its total."""
    add_deleted_usage: Executable
    """Adds the usage of deleted runs to the total of their key, owner and day."""

    @classmethod
    def for_dialect(cls, dialect: str) -> Self:
        """Build them for `sqlite` or `postgresql`."""
        insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
        run, step, worker_usage, deleted_usage = insert(runs), insert(steps), insert(shares), insert(forgotten)
        is_owned = runs.c.owner == bindparam("by_owner")
        return cls(
            insert_run=run.on_conflict_do_nothing(),
            claim_run=run.on_conflict_do_nothing(index_elements=["key", "idempotency", "choice"]).returning(runs.c.id),
            select_owned_runs=select(runs.c.id, runs.c.key, runs.c.api, runs.c.model).where(
                runs.c.id.in_(bindparam("run_ids", expanding=True)), is_owned
            ),
            update_run=update(runs).where(runs.c.id == bindparam("by_id"), is_owned),
            renew_leases=update(runs)
            .where(runs.c.id.in_(bindparam("active_runs", expanding=True)), is_owned)
            .where(runs.c.status == "running")
            .values(heartbeat=bindparam("now")),
            upsert_step=step.on_conflict_do_update(
                index_elements=list(steps.primary_key), set_={"body": step.excluded.body}
            ),
            delete_steps=delete(steps).where(steps.c.run == bindparam("of_run")),
            upsert_worker_usage=worker_usage.on_conflict_do_update(
                index_elements=list(shares.primary_key),
                set_={name: worker_usage.excluded[name] for name in USAGE_COLUMNS},
            ),
            add_deleted_usage=deleted_usage.on_conflict_do_update(
                index_elements=list(forgotten.primary_key),
                set_={
                    name: forgotten.c[name] + deleted_usage.excluded[name] for name in USAGE_COLUMNS + CHARGE_COLUMNS
                },
            ),
        )
