"""The statements that every run needs, made once: to build one costs more than to execute it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from sqlalchemy import Executable, bindparam, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from rl_conductor_server.store.queries import AMOUNTS, CHARGES
from rl_conductor_server.store.tables import forgotten, runs, shares, steps


@dataclass(frozen=True)
class Statements:
    """What is written, in the words of one database; values are given by the names of the columns."""

    begin: Executable
    """A new run, unless it is there already."""
    claim: Executable
    """A new run; returns its id unless its name is taken."""
    owned: Executable
    """What names those of `runs` that still are `its_owner`'s."""
    change: Executable
    """The row of run `its_id`, if it still is `its_owner`'s."""
    beat: Executable
    """The heartbeat of those of `living` that are `its_owner`'s, now at `now`."""
    keep: Executable
    """A plan or a step that is done."""
    forget: Executable
    """The steps of a run that is `over`."""
    share: Executable
    """What a worker used; a run that was taken up again tells the whole once more."""
    remember: Executable
    """What forgotten runs of one day used, beside what is remembered of others."""

    @classmethod
    def of(cls, dialect: str) -> Self:
        """For `sqlite` or `postgresql`."""
        insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
        begin, keep, share, remember = insert(runs), insert(steps), insert(shares), insert(forgotten)
        mine = (runs.c.id == bindparam("its_id"), runs.c.owner == bindparam("its_owner"))
        return cls(
            begin=begin.on_conflict_do_nothing(),
            claim=begin.on_conflict_do_nothing(index_elements=["key", "idempotency", "choice"]).returning(runs.c.id),
            owned=select(runs.c.id, runs.c.key, runs.c.api, runs.c.model).where(
                runs.c.id.in_(bindparam("runs", expanding=True)), runs.c.owner == bindparam("its_owner")
            ),
            change=update(runs).where(*mine),
            beat=update(runs)
            .where(runs.c.id.in_(bindparam("living", expanding=True)), runs.c.owner == bindparam("its_owner"))
            .where(runs.c.status == "running")
            .values(heartbeat=bindparam("now")),
            keep=keep.on_conflict_do_update(index_elements=list(steps.primary_key), set_={"body": keep.excluded.body}),
            forget=delete(steps).where(steps.c.run == bindparam("over")),
            share=share.on_conflict_do_update(
                index_elements=list(shares.primary_key), set_={name: share.excluded[name] for name in AMOUNTS}
            ),
            remember=remember.on_conflict_do_update(
                index_elements=list(forgotten.primary_key),
                set_={name: forgotten.c[name] + remember.excluded[name] for name in AMOUNTS + CHARGES},
            ),
        )
