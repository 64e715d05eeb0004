"""The states of a grammar of plans: what the rest of a plan depends on, once a part of it is written. Pure.

Each rule of the grammar is one state. It lists what may be written next, with the state after each choice. Without
rules of flow, the number of steps so far is enough. With them, a state also has to remember which workers must not see
which replies. Take a policy that keeps the replies of `files` from `web`:

    workers     0 files     1 web     2 chat, 3 code
    kinds       0           1         2                   workers that the rules treat alike are of one kind
    closed_to   0b010       0b000     0b000               bit 1 is set: kind 1 must not see replies of kind 0

    step 0      by files, reads nothing                   its reply is closed to 0b010
    step 1      by chat, reads step 0                     its reply, too, because it may repeat what the worker read
    step 2      by web                                    may read neither of them

So the state before step 2 is `(0b010, 0b010)`, a mask for each reply. In a binary space, where a step reads all earlier
replies or none, it is their union.

Bit `r` of a mask stands for reader `r`. In `rows`, where each worker is written next to its access list, a reader is a
kind of worker, as here. In `lists`, where all workers are written before the first access list, a reader is a later
step: masks of steps are equal more often, so that there are fewer states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import reduce, wraps
from itertools import combinations
from operator import or_
from typing import NamedTuple, TypeVar, TypeVarTuple

from rl_conductor.plan_text.forms import ALL, BEFORE, dumps
from rl_conductor.plan_text.gbnf import GrammarRules, GrammarTooLarge, quote_literal
from rl_conductor.workflow.plan_space import PlanSpace

MAX_STATES = 30_000
"""Maximum states and access lists that are examined for one grammar, which bounds the time to about a second."""

States = TypeVar("States", bound="PlanStates")
Arguments = TypeVarTuple("Arguments")
Masks = tuple[int, ...]
"""For each earlier reply, the readers that must not see it; one for all of them in a binary space."""


class Kind(NamedTuple):
    """A group of workers that the rules of flow treat alike."""

    ids: tuple[int, ...]
    last_ids: tuple[int, ...]
    """The ids of those that may do the last step."""
    closed_to: int
    """Mask of the kinds that must not see their replies."""


class AccessList(NamedTuple):
    """One possible access list of a step."""

    text: str
    closed_to: int
    """Mask of the readers that must not see the reply of a step with this access list. In a binary space it leaves out
    the masks of the replies that the step reads, because every reader of its reply reads these, too."""
    reads_all: bool
    """Whether the list includes every earlier step."""


def state(add_rule: Callable[[States, *Arguments], str | None]) -> Callable[[States, *Arguments], str | None]:
    """Makes a method, whose arguments are a state, add the rule of each state only once. It returns the rule's name.

    The name is `None` for a state that no plan can go on from.
    """

    @wraps(add_rule)
    def add_once(self: States, *arguments: *Arguments) -> str | None:
        key = (add_rule.__name__, *arguments)
        if key not in self.names:
            self.count()
            self.names[key] = add_rule(self, *arguments)
        return self.names[key]

    return add_once


class PlanStates(ABC):
    """Adds the rules of one space to a grammar. Each form of plan text has a subclass with its states."""

    def __init__(self, space: PlanSpace) -> None:
        self.space = space
        groups = _group_workers(space)
        self.kinds = tuple(_kind(space, groups, workers) for workers in groups)
        self.recall_closed_to = None if space.recallable is None else _closed_to(space, groups, space.recallable)
        """Mask of the kinds that must not see the earlier rounds; `None` in the first round."""
        self.rules = GrammarRules()
        self.names: dict[tuple[object, ...], str | None] = {}
        """The names of the rules, by state."""
        self._count = 0

    @abstractmethod
    def start(self) -> str | None:
        """Adds all rules and returns the one of a whole plan; `None` if no plan is possible."""

    def access_lists(
        self, index: int, replies: Masks, *, reader: int, closed_to: int, recall_closed_to: int | None
    ) -> Iterator[AccessList]:
        """Yields the access lists that step `index` may have.

        Args:
            index: position of the step, from 0.
            replies: the masks of the earlier replies.
            reader: the bit of the step's worker in masks.
            closed_to: the readers that must not see a reply of the step's worker.
            recall_closed_to: those that must not see the earlier rounds; `None` in the first round.
        """
        may_recall = recall_closed_to is not None and not is_closed(recall_closed_to, reader)
        readable = [step for step, mask in enumerate(replies) if not is_closed(mask, reader)]
        if self.space.access == "binary":
            yield AccessList("[]", closed_to, index == 0)
            if len(readable) == len(replies) and (may_recall or (index > 0 and recall_closed_to is None)):
                yield AccessList(dumps([ALL]), closed_to, True)
            return
        for recalls in (False, True)[: 1 + may_recall]:
            for count in range(len(readable) + 1):
                for steps in combinations(readable, count):
                    self.count()
                    mask = closed_to | union(replies[step] for step in steps) | ((recall_closed_to or 0) * recalls)
                    yield AccessList(dumps([BEFORE] * recalls + list(steps)), mask, count == index)

    def with_reply(self, replies: Masks, access: AccessList) -> Masks:
        """Returns the masks of the replies after a step with `access`."""
        return (union(replies) | access.closed_to,) if self.space.access == "binary" else (*replies, access.closed_to)

    def worker_ids(self, ids: tuple[int, ...]) -> str | None:
        """Adds the rule for one of these workers."""
        return self.rules.add(quote_literal(str(i)) for i in ids)

    def count(self) -> None:
        """Counts a state or access list. Raises `GrammarTooLarge` if there are too many."""
        self._count += 1
        if self._count > MAX_STATES:
            raise GrammarTooLarge(f"the rules of this space take more than {MAX_STATES} states")


def is_closed(mask: int, reader: int) -> bool:
    """Returns whether `mask` keeps content from the reader with this bit."""
    return bool(mask >> reader & 1)


def union(masks: Iterable[int]) -> int:
    """Returns the mask of all readers in any of `masks`."""
    return reduce(or_, masks, 0)


def _group_workers(space: PlanSpace) -> tuple[tuple[str, ...], ...]:
    """Groups the allowed workers by kind: those that the rules of flow treat alike as readers and as sources."""
    sources = [*space.choices, *sorted(space.recallable or ())]
    groups: dict[object, list[str]] = {}
    for worker in space.choices:
        reads = tuple(space.may_read(worker, source) for source in sources)
        read_by = tuple(space.may_read(reader, worker) for reader in space.choices)
        groups.setdefault((reads, read_by), []).append(worker)
    return tuple(tuple(group) for group in groups.values())


def _kind(space: PlanSpace, groups: tuple[tuple[str, ...], ...], workers: tuple[str, ...]) -> Kind:
    return Kind(
        ids=tuple(space.roster.index(worker) for worker in workers),
        last_ids=tuple(space.roster.index(worker) for worker in workers if worker in space.final_workers),
        closed_to=_closed_to(space, groups, workers[:1]),
    )


def _closed_to(space: PlanSpace, groups: tuple[tuple[str, ...], ...], sources: Iterable[str]) -> int:
    """Returns the mask of the kinds, in the order of `groups`, that must not see content of any of `sources`."""
    return union(
        1 << number for number, group in enumerate(groups) for source in sources if not space.may_read(group[0], source)
    )
