"""SQL statements that every run needs, built once per process: building one costs more than executing it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from sqlalchemy import (
    ColumnElement,
    Executable,
    bindparam,
    delete,
    func,
    select,
    update,
)

from rl_conductor_server.store.column_types import Count, Dollars
from rl_conductor_server.store.dialects import database_now, insert_into
from rl_conductor_server.store.tables import (
    CHARGE_COLUMNS,
    USAGE_COLUMNS,
    budget_leases,
    deleted_usage,
    indexed_runs,
    runs,
    steps,
    unindexed_runs,
    users,
    worker_usage,
)

OWNED_COLUMNS = ("id", "key", "api", "model", "created", *CHARGE_COLUMNS)
INDEX_BATCH_SIZE = 100
"""Number of runs that are added to the index of texts together, which takes less time than one by one."""
_period = budget_leases.alias()


@dataclass(frozen=True)
class Statements:
    """Statements in the dialect of one database; parameters have the names of the columns unless noted."""

    insert_run: Executable
    """Does nothing if the run exists."""
    insert_user: Executable
    """Inserts an end user of a run; does nothing if the run has it."""
    claim_run: Executable
    """Inserts a run and returns its id, or returns nothing if its idempotency key is in use."""
    select_owned_runs: Executable
    """Selects those of `run_ids` that are owned by `by_owner`."""
    update_run: Executable
    """Updates run `by_id` if it is owned by `by_owner`."""
    renew_leases: Executable
    """Sets the heartbeat of those of `active_runs` that are owned by `by_owner`."""
    renew_shares: Executable
    """Sets the heartbeat of the shares of budgets of `by_owner`."""
    add_to_share: Executable
    """Inserts a share of a budget, or increases it."""
    charge_share: Executable
    """Adds `usd` and `tokens` to the charges of `by_owner` in its share of `of_key` for the period of `of_day`."""
    upsert_step: Executable
    """Inserts or replaces a plan or a finished step."""
    delete_steps: Executable
    """Deletes the steps of run `of_run`."""
    upsert_worker_usage: Executable
    """Inserts or replaces the usage of one worker: a resumed run reports its total."""
    add_deleted_usage: Executable
    """Adds the usage of deleted runs to the total of their key, owner and day."""
    index_runs: Executable | None
    """Adds `INDEX_BATCH_SIZE` of the runs that have ended to SQLite's index of texts, once there are as many."""
    now: ColumnElement[float]
    """The database's current time in seconds since 1970."""

    @classmethod
    def for_dialect(cls, dialect: str, *, search_index: bool = True) -> Self:
        """Builds them for `sqlite` or `postgresql`."""
        insert = partial(insert_into, dialect=dialect)
        now = database_now(dialect)
        run = insert(runs).values(heartbeat=now)
        claim = run.on_conflict_do_nothing(index_elements=["key", "idempotency_key", "choice"])
        step, usage, deleted = insert(steps), insert(worker_usage), insert(deleted_usage)
        share = insert(budget_leases).values(heartbeat=now)
        is_owned = runs.c.owner == bindparam("by_owner")
        return cls(
            insert_run=run.on_conflict_do_nothing(),
            insert_user=insert(users).on_conflict_do_nothing(),
            claim_run=claim.returning(runs.c.id),
            select_owned_runs=select(*(runs.c[name] for name in OWNED_COLUMNS)).where(
                runs.c.id.in_(bindparam("run_ids", expanding=True)), is_owned
            ),
            now=now,
            update_run=update(runs).where(runs.c.id == bindparam("by_id"), is_owned),
            renew_leases=update(runs)
            .where(runs.c.id.in_(bindparam("active_runs", expanding=True)), is_owned)
            .where(runs.c.status == "running")
            .values(heartbeat=now),
            renew_shares=update(budget_leases)
            .where(budget_leases.c.owner == bindparam("by_owner"))
            .values(heartbeat=now),
            add_to_share=share.on_conflict_do_update(
                index_elements=list(budget_leases.primary_key),
                set_={
                    "granted_usd": budget_leases.c.granted_usd + share.excluded.granted_usd,
                    "granted_tokens": budget_leases.c.granted_tokens + share.excluded.granted_tokens,
                    "heartbeat": now,
                },
            ),
            charge_share=_charge_share(),
            index_runs=_index_runs() if dialect == "sqlite" and search_index else None,
            upsert_step=step.on_conflict_do_update(
                index_elements=list(steps.primary_key), set_={"body": step.excluded.body}
            ),
            delete_steps=delete(steps).where(steps.c.run == bindparam("of_run")),
            upsert_worker_usage=usage.on_conflict_do_update(
                index_elements=list(worker_usage.primary_key),
                set_={name: usage.excluded[name] for name in USAGE_COLUMNS},
            ),
            add_deleted_usage=deleted.on_conflict_do_update(
                index_elements=list(deleted_usage.primary_key),
                set_={name: deleted_usage.c[name] + deleted.excluded[name] for name in USAGE_COLUMNS + CHARGE_COLUMNS},
            ),
        )


def _index_runs() -> Executable:
    batch = select(unindexed_runs.c.run).limit(INDEX_BATCH_SIZE)
    last = select(unindexed_runs.c.run).limit(1).offset(INDEX_BATCH_SIZE - 1).scalar_subquery()
    return indexed_runs.insert().from_select(["run"], batch.where(last.is_not(None)))


def _charge_share() -> Executable:
    """Charges the share that an owner has of a key's newest period up to a day."""
    newest_period = (
        select(func.max(_period.c.start))
        .where(_period.c.key == bindparam("of_key"), _period.c.owner == bindparam("by_owner"))
        .where(_period.c.start <= bindparam("of_day"))
        .scalar_subquery()
    )
    return (
        update(budget_leases)
        .where(budget_leases.c.key == bindparam("of_key"), budget_leases.c.owner == bindparam("by_owner"))
        .where(budget_leases.c.start == newest_period)
        .values(
            charged_usd=budget_leases.c.charged_usd + bindparam("usd", type_=Dollars),
            charged_tokens=budget_leases.c.charged_tokens + bindparam("tokens", type_=Count),
        )
    )
